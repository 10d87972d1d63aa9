"""Drivers: how agents run, and how their requests travel. Each is one class that keeps the contract of `parl_like.driver.Driver`."""
