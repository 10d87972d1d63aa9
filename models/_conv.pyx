# distutils: language = c++
# distutils: extra_compile_args = -std=c++17 -ffp-contract=off -fno-math-errno -Wno-psabi
# distutils: depends = models/conv.h models/conv_kernels.h parl_like/learning/levels.h
# cython: boundscheck=False, wraparound=False, cdivision=True
"""conv.h on addresses of torch's memory; small_images.py checks what lies there, and has the plain twin."""

from cpython.dict cimport PyDict_Next
from cpython.ref cimport PyObject
from libc.stdint cimport uintptr_t
from libcpp cimport bool as cbool


cdef extern from "conv.h" namespace "conv" nogil:
    cdef struct Shape:
        long channels_in "in"
        long channels_out "out"
        long height, width, n, k
    cdef struct Kernels:
        void (*convolve)(const Shape&, const float*, const float*, const float*, const float*, cbool, float*) noexcept nogil
        void (*weight_gradient)(const Shape&, const float*, const float*, float*) noexcept nogil
        void (*channel_sums)(const float*, long, long, float*) noexcept nogil
        void (*normalise)(const float*, long, long, float, const float*, const float*, const float*, cbool, float*, float*,
                          float*, float*) noexcept nogil
        void (*normalise_gradient)(float*, const float*, const float*, long, long, const float*, const float*, const float*,
                                   float*, float*) noexcept nogil
        void (*relu_gradient)(const float*, const float*, long, float*) noexcept nogil
    const Kernels* kernels_of(int, int*)


cdef int LEVEL = 0
cdef const Kernels* KERNELS = kernels_of(2, &LEVEL)


def level(int wanted=2):
    """Take the kernels of this level, or the best below it that the processor has, from now on; return which: 2 AVX-512, 1 AVX2
    with FMA, 0 neither."""
    global KERNELS
    KERNELS = kernels_of(wanted, &LEVEL)
    return LEVEL


cdef Shape shape_of(tuple shape):
    cdef Shape s
    s.channels_in, s.channels_out, s.height, s.width, s.n, s.k = shape
    return s


def convolve(tuple shape, uintptr_t x, uintptr_t w, uintptr_t bias, uintptr_t add, bint relu, uintptr_t out):
    """out = [relu](x ∗ w [+ bias] [+ add]); shape: (in, out, height, width, n, k); an address of 0: there is none."""
    cdef Shape s = shape_of(shape)
    with nogil:
        KERNELS.convolve(s, <const float*> x, <const float*> w, <const float*> bias, <const float*> add, relu, <float*> out)


def weight_gradient(tuple shape, uintptr_t x, uintptr_t g, uintptr_t dw):
    """dw [out, in, k, k] of a convolution of this shape, from the gradient g of its output."""
    cdef Shape s = shape_of(shape)
    with nogil:
        KERNELS.weight_gradient(s, <const float*> x, <const float*> g, <float*> dw)


def channel_sums(uintptr_t x, long channels, long numbers, uintptr_t out):
    """Sums over the `numbers` of each channel."""
    with nogil:
        KERNELS.channel_sums(<const float*> x, channels, numbers, <float*> out)


def normalise(uintptr_t x, long channels, long numbers, float eps, uintptr_t scale, uintptr_t shift, uintptr_t add, bint relu,
              uintptr_t mean, uintptr_t variance, uintptr_t slope, uintptr_t y):
    """y = [relu]((x − mean) slope scale + shift [+ add]), with mean, variance and slope of each channel."""
    with nogil:
        KERNELS.normalise(<const float*> x, channels, numbers, eps, <const float*> scale, <const float*> shift,
                          <const float*> add, relu, <float*> mean, <float*> variance, <float*> slope, <float*> y)


def normalise_gradient(uintptr_t g, uintptr_t x, uintptr_t after, long channels, long numbers, uintptr_t scale, uintptr_t mean,
                       uintptr_t slope, uintptr_t dscale, uintptr_t dshift):
    """g, the gradient of y, becomes that of x; with `after`, g counts only where that is above 0."""
    with nogil:
        KERNELS.normalise_gradient(<float*> g, <const float*> x, <const float*> after, channels, numbers, <const float*> scale,
                                   <const float*> mean, <const float*> slope, <float*> dscale, <float*> dshift)


def relu_gradient(uintptr_t g, uintptr_t y, long numbers, uintptr_t out):
    """g where y is above 0, else 0."""
    with nogil:
        KERNELS.relu_gradient(<const float*> g, <const float*> y, numbers, <float*> out)


cdef class Seen:
    """What dicts held when they were looked at, and the classes of objects."""

    cdef list held, objects

    def __init__(self, list dicts not None, list objects not None):
        self.held = [(each, tuple(each.values())) for each in dicts]
        self.objects = [(each, type(each)) for each in objects]

    def same(self):
        """Return whether they hold the same objects, and the classes are the same."""
        cdef PyObject* key
        cdef PyObject* value
        cdef Py_ssize_t at, i
        cdef tuple before
        for one, kind in self.objects:
            if type(one) is not kind:
                return False
        for own, before in self.held:
            if len(<dict>own) != len(before):
                return False
            at = i = 0
            while i < len(before) and PyDict_Next(<dict>own, &at, &key, &value):
                if <PyObject*>before[i] != value:
                    return False
                i += 1
        return True
