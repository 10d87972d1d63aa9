"""Drivers: how agents run and how their requests travel. Each is a class that keeps the contract of `parl_like.driver.Driver`."""
