/* Physics of gymnasium's classic control: `begin` draws a state and shows it; `move` steps a state, shows it, gives the reward, and
   returns whether the episode ends. Precision and order of operations are gymnasium's; see _steps.pyx. */

#pragma once
#include <math.h>
#include <stdint.h>
#include <string.h>
#include "numpy/random/bitgen.h"

#define PI 3.141592653589793

enum { CARTPOLE, PENDULUM, MOUNTAIN_CAR, MOUNTAIN_CAR_CONTINUOUS, ACROBOT, KINDS };

enum { CONSTANTS = 16, STATE = 4 };
/* Numbers of the columns of constants. Where actions are numbers, what is done to them comes first. */
enum { GRAVITY, MASSPOLE, TOTAL_MASS, LENGTH, POLEMASS_LENGTH, FORCE_MAG, TAU, THETA_THRESHOLD, X_THRESHOLD, SUTTON, EULER };
enum { CLIPS, RESCALES, MIDDLE, HALF, LOW, HIGH, AFTER_BOUNDS };
enum { MAX_SPEED = AFTER_BOUNDS, MAX_TORQUE, DT, G, M, L };
enum { CAR_POWER = AFTER_BOUNDS, CAR_MIN, CAR_MAX, CAR_SPEED, CAR_GOAL, CAR_GOAL_VELOCITY, CAR_GRAVITY };
enum { STEP_DT, LENGTH_1, COM_1, COM_2, MASS_1, MASS_2, MOI, VEL_1, VEL_2 };

/* NumPy's own loops, for one number at a time. */
typedef void (*LoopCall)(char **, intptr_t *, intptr_t *, void *);
typedef struct { LoopCall call; void *data; } Loop;
static Loop COS64, SIN64, COS32, SIN32;

static inline double through64(const Loop *loop, double x) {
    double y;
    char *args[2] = {(char *)&x, (char *)&y};
    intptr_t one = 1, strides[2] = {sizeof x, sizeof y};
    loop->call(args, &one, strides, loop->data);
    return y;
}

static inline float through32(const Loop *loop, float x) {
    float y;
    char *args[2] = {(char *)&x, (char *)&y};
    intptr_t one = 1, strides[2] = {sizeof x, sizeof y};
    loop->call(args, &one, strides, loop->data);
    return y;
}

static inline double cos64(double x) { return through64(&COS64, x); }
static inline double sin64(double x) { return through64(&SIN64, x); }

static inline double bounded(double x, double low, double high) {
    x = x < low ? low : x;
    return x > high ? high : x;
}

static inline float bounded32(float x, float low, float high) {
    x = x < low ? low : x;
    return x > high ? high : x;
}

static inline double uniform(bitgen_t *bits, double low, double width) { return low + width * bits->next_double(bits->state); }

static void show(const double *s, int count, float *obs) {
    for (int j = 0; j < count; j++) obs[j] = (float)s[j];
}

/* ------------------------------------------------------------------------------------------------------------ CartPole */

static void cartpole_begin(double *s, bitgen_t *bits, float *obs) {
    for (int j = 0; j < 4; j++) s[j] = uniform(bits, -0.05, 0.05 - -0.05);
    show(s, 4, obs);
}

static int cartpole(double *s, const double *c, const void *act, int fresh, float *obs, double *rew) {
    double force = *(const int64_t *)act == 1 ? c[FORCE_MAG] : -c[FORCE_MAG], tau = c[TAU];
    double x = s[0], x_dot = s[1], theta = s[2], theta_dot = s[3];
    double costheta = cos64(theta), sintheta = sin64(theta);
    double temp = (force + c[POLEMASS_LENGTH] * (theta_dot * theta_dot) * sintheta) / c[TOTAL_MASS];
    double thetaacc = (c[GRAVITY] * sintheta - costheta * temp)
                      / (c[LENGTH] * (4.0 / 3.0 - c[MASSPOLE] * (costheta * costheta) / c[TOTAL_MASS]));
    double xacc = temp - c[POLEMASS_LENGTH] * thetaacc * costheta / c[TOTAL_MASS];
    if (c[EULER]) {
        x = x + tau * x_dot;
        x_dot = x_dot + tau * xacc;
        theta = theta + tau * theta_dot;
        theta_dot = theta_dot + tau * thetaacc;
    } else {
        x_dot = x_dot + tau * xacc;
        x = x + tau * x_dot;
        theta_dot = theta_dot + tau * thetaacc;
        theta = theta + tau * theta_dot;
    }
    s[0] = x, s[1] = x_dot, s[2] = theta, s[3] = theta_dot;
    show(s, 4, obs);
    int ends = x < -c[X_THRESHOLD] || x > c[X_THRESHOLD] || theta < -c[THETA_THRESHOLD] || theta > c[THETA_THRESHOLD];
    *rew = c[SUTTON] ? (ends ? -1.0 : 0.0) : 1.0;
    return ends;
}

/* ------------------------------------------------------------------------------------------------------------ Pendulum */

/* What `ActionBounds` makes of an action. */
static float inward(const double *c, float a) {
    if (!c[CLIPS]) return a;
    if (!c[RESCALES]) return bounded32(a, (float)c[LOW], (float)c[HIGH]);
    a = bounded32(a, -1.0f, 1.0f);
    return bounded32((float)(c[MIDDLE] + c[HALF] * (double)a), (float)c[LOW], (float)c[HIGH]);
}

static void pendulum_show(const double *s, float *obs) {
    obs[0] = (float)cos64(s[0]), obs[1] = (float)sin64(s[0]), obs[2] = (float)s[1];
}

static void pendulum_begin(double *s, bitgen_t *bits, float *obs) {
    s[0] = uniform(bits, -PI, PI - -PI);
    s[1] = uniform(bits, -1.0, 1.0 - -1.0);
    pendulum_show(s, obs);
}

static int pendulum(double *s, const double *c, const void *act, int fresh, float *obs, double *rew) {
    float u = bounded32(inward(c, *(const float *)act), -(float)c[MAX_TORQUE], (float)c[MAX_TORQUE]);
    double th = s[0], thdot = s[1], angle = fmod(th + PI, 2 * PI);
    angle = (angle < 0 ? angle + 2 * PI : angle) - PI;
    double costs = pow(angle, 2.0) + 0.1 * pow(thdot, 2.0) + (double)(0.001f * powf(u, 2.0f));
    float push = (float)(3.0 / (c[M] * pow(c[L], 2.0))) * u;
    thdot = thdot + (3 * c[G] / (2 * c[L]) * sin64(th) + (double)push) * c[DT];
    thdot = bounded(thdot, -c[MAX_SPEED], c[MAX_SPEED]);
    s[0] = th + thdot * c[DT], s[1] = thdot, s[2] = u;
    pendulum_show(s, obs);
    *rew = -costs;
    return 0;
}

/* --------------------------------------------------------------------------------------------------------- mountain cars */

static void car_begin(double *s, bitgen_t *bits, float *obs) {
    s[0] = uniform(bits, -0.6, -0.4 - -0.6);
    s[1] = 0.0;
    show(s, 2, obs);
}

static int mountain_car(double *s, const double *c, const void *act, int fresh, float *obs, double *rew) {
    double position = s[0], velocity = s[1];
    velocity = velocity + ((double)(*(const int64_t *)act - 1) * c[CAR_POWER] + cos(3 * position) * -c[CAR_GRAVITY]);
    velocity = bounded(velocity, -c[CAR_SPEED], c[CAR_SPEED]);
    position = bounded(position + velocity, c[CAR_MIN], c[CAR_MAX]);
    if (position == c[CAR_MIN] && velocity < 0) velocity = 0.0;
    s[0] = position, s[1] = velocity;
    show(s, 2, obs);
    *rew = -1.0;
    return position >= c[CAR_GOAL] && velocity >= c[CAR_GOAL_VELOCITY];
}

/* x ≥ y; `single`: x or y is a float32, with which NumPy compares a number of Python's as one, too. */
static inline int at_least(double x, double y, int single) { return single ? (float)x >= (float)y : x >= y; }

/* The state is float64 after a reset (`fresh`) and float32 from then on; a number that was set to a bound is one of Python's. */
static int car_continuous(double *s, const double *c, const void *act, int fresh, float *obs, double *rew) {
    float action = inward(c, *(const float *)act);
    double position = s[0], velocity = s[1], gain;
    int position_is = !fresh, velocity_is = !fresh;
    double pull = c[CAR_GRAVITY] * cos(fresh ? 3 * position : (double)(3.0f * (float)position));
    if (action < -1.0f || action > 1.0f)
        gain = (action < 0 ? -1.0 : 1.0) * c[CAR_POWER] - pull;
    else
        gain = (double)(action * (float)c[CAR_POWER] - (float)pull);
    velocity = fresh ? velocity + gain : (double)((float)velocity + (float)gain);
    if (!at_least(c[CAR_SPEED], velocity, velocity_is)) velocity = c[CAR_SPEED], velocity_is = 0;
    if (!at_least(velocity, -c[CAR_SPEED], velocity_is)) velocity = -c[CAR_SPEED], velocity_is = 0;
    position = fresh ? position + velocity : (double)((float)position + (float)velocity);
    if (!at_least(c[CAR_MAX], position, position_is)) position = c[CAR_MAX], position_is = 0;
    if (!at_least(position, c[CAR_MIN], position_is)) position = c[CAR_MIN], position_is = 0;
    int at_wall = position_is ? (float)position == (float)c[CAR_MIN] : position == c[CAR_MIN];
    if (at_wall && velocity < 0) velocity = 0.0, velocity_is = 0;
    int ends = at_least(position, c[CAR_GOAL], position_is) && at_least(velocity, c[CAR_GOAL_VELOCITY], velocity_is);
    *rew = (ends ? 100.0 : 0.0) - pow((double)action, 2.0) * 0.1;
    obs[0] = (float)position, obs[1] = (float)velocity;
    s[0] = obs[0], s[1] = obs[1];
    return ends;
}

/* ------------------------------------------------------------------------------------------------------------- Acrobot */

static void acrobot_begin(double *s, bitgen_t *bits, float *obs) {
    for (int j = 0; j < 4; j++) {
        float x = (float)uniform(bits, -0.1, 0.1 - -0.1);
        s[j] = x;
        if (j < 2)
            obs[2 * j] = through32(&COS32, x), obs[2 * j + 1] = through32(&SIN32, x);
        else
            obs[2 + j] = x;
    }
}

static void acrobot_slopes(const double *s, double torque, const double *c, double *out) {
    double m1 = c[MASS_1], m2 = c[MASS_2], l1 = c[LENGTH_1], lc1 = c[COM_1], lc2 = c[COM_2], moi = c[MOI], g = 9.8;
    double theta1 = s[0], theta2 = s[1], dtheta1 = s[2], dtheta2 = s[3];
    double cos2 = cos64(theta2), sin2 = sin64(theta2), lc2_squared = pow(lc2, 2.0);
    double d1 = m1 * pow(lc1, 2.0) + m2 * (pow(l1, 2.0) + lc2_squared + 2 * l1 * lc2 * cos2) + moi + moi;
    double d2 = m2 * (lc2_squared + l1 * lc2 * cos2) + moi;
    double phi2 = m2 * lc2 * g * cos64(theta1 + theta2 - PI / 2.0);
    double phi1 = -m2 * l1 * lc2 * pow(dtheta2, 2.0) * sin2 - 2 * m2 * l1 * lc2 * dtheta2 * dtheta1 * sin2
                  + (m1 * lc1 + m2 * l1) * g * cos64(theta1 - PI / 2) + phi2;
    double ddtheta2 = (torque + d2 / d1 * phi1 - m2 * l1 * lc2 * pow(dtheta1, 2.0) * sin2 - phi2)
                      / (m2 * lc2_squared + moi - pow(d2, 2.0) / d1);
    out[0] = dtheta1, out[1] = dtheta2, out[2] = -(d2 * ddtheta2 + phi1) / d1, out[3] = ddtheta2;
}

static double wrapped(double x) {
    while (x > PI) x = x - 2 * PI;
    while (x < -PI) x = x + 2 * PI;
    return x;
}

/* Runge and Kutta's fourth order. */
static int acrobot(double *s, const double *c, const void *act, int fresh, float *obs, double *rew) {
    double torque = (double)(*(const int64_t *)act - 1), dt = c[STEP_DT], dt2 = c[STEP_DT] / 2.0;
    double k1[4], k2[4], k3[4], k4[4], y[4];
    acrobot_slopes(s, torque, c, k1);
    for (int j = 0; j < 4; j++) y[j] = s[j] + dt2 * k1[j];
    acrobot_slopes(y, torque, c, k2);
    for (int j = 0; j < 4; j++) y[j] = s[j] + dt2 * k2[j];
    acrobot_slopes(y, torque, c, k3);
    for (int j = 0; j < 4; j++) y[j] = s[j] + dt * k3[j];
    acrobot_slopes(y, torque, c, k4);
    for (int j = 0; j < 4; j++) s[j] = s[j] + dt / 6.0 * (k1[j] + 2 * k2[j] + 2 * k3[j] + k4[j]);
    s[0] = wrapped(s[0]), s[1] = wrapped(s[1]);
    s[2] = bounded(s[2], -c[VEL_1], c[VEL_1]), s[3] = bounded(s[3], -c[VEL_2], c[VEL_2]);
    double cos1 = cos64(s[0]);
    int ends = -cos1 - cos64(s[1] + s[0]) > 1.0;
    obs[0] = (float)cos1, obs[1] = (float)sin64(s[0]), obs[2] = (float)cos64(s[1]), obs[3] = (float)sin64(s[1]);
    obs[4] = (float)s[2], obs[5] = (float)s[3];
    *rew = ends ? 0.0 : -1.0;
    return ends;
}

/* ---------------------------------------------------------------------------------------------------------------- all */

typedef struct {
    void (*begin)(double *s, bitgen_t *bits, float *obs);
    int (*move)(double *s, const double *c, const void *act, int fresh, float *obs, double *rew);
    int actions; /* how many there are; 0: they are numbers */
} Physics;

static const Physics PHYSICS[KINDS] = {
    [CARTPOLE] = {cartpole_begin, cartpole, 2},
    [PENDULUM] = {pendulum_begin, pendulum, 0},
    [MOUNTAIN_CAR] = {car_begin, mountain_car, 3},
    [MOUNTAIN_CAR_CONTINUOUS] = {car_begin, car_continuous, 0},
    [ACROBOT] = {acrobot_begin, acrobot, 3},
};

/* The first entry above x of sums that do not fall; 0 where none is: `categorical_sample` of gymnasium. */
static int64_t first_above(const double *sums, int64_t count, double x) {
    int64_t low = 0, high = count;
    while (low < high) {
        int64_t middle = (low + high) / 2;
        if (sums[middle] > x) high = middle;
        else low = middle + 1;
    }
    return low < count ? low : 0;
}
