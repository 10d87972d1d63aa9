"""Compiled steps of environments in plain NumPy: the physics of n states at once, and draws from tables."""

import math

import numpy as np

from parl_like.envs.vector._steps import Kind

POWER = np.vectorize(math.pow, otypes=[float])
COS = np.vectorize(math.cos, otypes=[float])


def number(row):
    """[n, 1] float32 → [n]."""
    return row[:, 0]


def inward(c, act):
    clips, rescales, middle, half, low, high = c[:6]
    if not clips:
        return number(act)
    if rescales:
        act = (middle + half * np.clip(act, -1.0, 1.0).astype(np.float64)).astype(np.float32)
    return np.clip(number(act), np.float32(low), np.float32(high))


def cartpole(s, c, act, fresh):
    gravity, masspole, total, length, polemass, force_mag, tau, theta_most, x_most, sutton, euler = c[:11]
    x, x_dot, theta, theta_dot = s.T
    force = np.where(act == 1, force_mag, -force_mag)
    cos, sin = np.cos(theta), np.sin(theta)
    temp = (force + polemass * np.square(theta_dot) * sin) / total
    thetaacc = (gravity * sin - cos * temp) / (length * (4.0 / 3.0 - masspole * np.square(cos) / total))
    xacc = temp - polemass * thetaacc * cos / total
    new_x_dot, new_theta_dot = x_dot + tau * xacc, theta_dot + tau * thetaacc
    x, theta = x + tau * (x_dot if euler else new_x_dot), theta + tau * (theta_dot if euler else new_theta_dot)
    out = np.stack([x, new_x_dot, theta, new_theta_dot], 1)
    ends = (np.abs(x) > x_most) | (np.abs(theta) > theta_most)
    return out, out.astype(np.float32), np.where(ends, -1.0, 0.0) if sutton else np.ones(len(s)), ends


def pendulum(s, c, act, fresh):
    max_speed, max_torque, dt, g, m, length = c[6:12]
    th, thdot = s.T
    u = np.clip(inward(c, act), np.float32(-max_torque), np.float32(max_torque))
    angle = (th + np.pi) % (2 * np.pi) - np.pi
    small = np.float32(0.001) * np.array([one**2 for one in u], np.float32)
    costs = POWER(angle, 2) + 0.1 * POWER(thdot, 2) + small.astype(np.float64)
    push = (np.float32(3.0 / (m * length**2)) * u).astype(np.float64)
    thdot = np.clip(thdot + (3 * g / (2 * length) * np.sin(th) + push) * dt, -max_speed, max_speed)
    th = th + thdot * dt
    seen = np.stack([np.cos(th), np.sin(th), thdot], 1).astype(np.float32)
    return np.stack([th, thdot], 1), seen, -costs, np.zeros(len(s), bool)


def mountain_car(s, c, act, fresh):
    power, low, high, speed, goal, goal_velocity, gravity = c[6:13]
    position, velocity = s.T
    velocity = np.clip(velocity + ((act - 1) * power + COS(3 * position) * -gravity), -speed, speed)
    position = np.clip(position + velocity, low, high)
    velocity = np.where((position == low) & (velocity < 0), 0.0, velocity)
    out = np.stack([position, velocity], 1)
    return out, out.astype(np.float32), -np.ones(len(s)), (position >= goal) & (velocity >= goal_velocity)


def car_continuous(s, c, act, fresh):
    """By gymnasium's own words, one after the other: they turn on which numbers are NumPy's and which are Python's."""
    power, low, high, speed, goal, goal_velocity, gravity = (float(x) for x in c[6:13])
    out, rew, ends = [], [], []
    for row, action in zip(s, inward(c, act), strict=True):
        position, velocity = row if fresh else row.astype(np.float32)
        force = min(max(action, -1.0), 1.0)
        velocity += force * power - gravity * math.cos(3 * position)
        velocity = min(velocity, speed) if velocity > speed else velocity
        velocity = -speed if velocity < -speed else velocity
        position += velocity
        position = high if position > high else position
        position = low if position < low else position
        velocity = 0 if position == low and velocity < 0 else velocity
        ends.append(bool(position >= goal and velocity >= goal_velocity))
        rew.append((100.0 if ends[-1] else 0) - math.pow(action, 2) * 0.1)
        out.append(np.array([position, velocity], np.float32))
    return np.array(out, np.float64), np.array(out), np.array(rew), np.array(ends)


def acrobot(s, c, act, fresh):
    dt, l1, lc1, lc2, m1, m2, moi, vel1, vel2 = c[:9]

    def slopes(y):
        theta1, theta2, dtheta1, dtheta2 = y.T
        d1 = m1 * lc1**2 + m2 * (l1**2 + lc2**2 + 2 * l1 * lc2 * np.cos(theta2)) + moi + moi
        d2 = m2 * (lc2**2 + l1 * lc2 * np.cos(theta2)) + moi
        phi2 = m2 * lc2 * 9.8 * np.cos(theta1 + theta2 - np.pi / 2.0)
        phi1 = (-m2 * l1 * lc2 * POWER(dtheta2, 2) * np.sin(theta2) - 2 * m2 * l1 * lc2 * dtheta2 * dtheta1 * np.sin(theta2)
                + (m1 * lc1 + m2 * l1) * 9.8 * np.cos(theta1 - np.pi / 2) + phi2)
        ddtheta2 = (act - 1.0 + d2 / d1 * phi1 - m2 * l1 * lc2 * POWER(dtheta1, 2) * np.sin(theta2) - phi2) / (
            m2 * lc2**2 + moi - POWER(d2, 2) / d1)
        return np.stack([dtheta1, dtheta2, -(d2 * ddtheta2 + phi1) / d1, ddtheta2], 1)

    k1 = slopes(s)
    k2 = slopes(s + dt / 2.0 * k1)
    k3 = slopes(s + dt / 2.0 * k2)
    k4 = slopes(s + dt * k3)
    out = s + dt / 6.0 * (k1 + 2 * k2 + 2 * k3 + k4)
    for j in range(2):
        while (out[:, j] > np.pi).any():
            out[:, j] = np.where(out[:, j] > np.pi, out[:, j] - 2 * np.pi, out[:, j])
        while (out[:, j] < -np.pi).any():
            out[:, j] = np.where(out[:, j] < -np.pi, out[:, j] + 2 * np.pi, out[:, j])
    out[:, 2], out[:, 3] = np.clip(out[:, 2], -vel1, vel1), np.clip(out[:, 3], -vel2, vel2)
    ends = -np.cos(out[:, 0]) - np.cos(out[:, 1] + out[:, 0]) > 1.0
    seen = np.stack([np.cos(out[:, 0]), np.sin(out[:, 0]), np.cos(out[:, 1]), np.sin(out[:, 1]), out[:, 2], out[:, 3]], 1)
    return out, seen.astype(np.float32), np.where(ends, 0.0, -1.0), ends


PHYSICS = {Kind.CARTPOLE: cartpole, Kind.PENDULUM: pendulum, Kind.MOUNTAIN_CAR: mountain_car,
           Kind.MOUNTAIN_CAR_CONTINUOUS: car_continuous, Kind.ACROBOT: acrobot}


def draw(probabilities, rng):
    """The number of a category, as gymnasium draws it."""
    return int(np.argmax(np.cumsum(probabilities) > rng.random()))
