# distutils: language = c++
# distutils: extra_compile_args = -std=c++17 -ffp-contract=off -fno-math-errno -Wno-psabi
# distutils: depends = parl_like/learning/native.h parl_like/learning/native_kernels.h parl_like/learning/levels.h
# cython: boundscheck=False, wraparound=False, cdivision=True
"""Networks of dense layers and Adam's step on the memory of torch's parameters: native.h, with checked arguments.

native.py describes networks, and has the plain twin of the layers; that of the step is `torch.optim.Adam`.
"""

from cpython.dict cimport PyDict_Next
from cpython.ref cimport PyObject
from libc.math cimport sqrt
from libc.stdint cimport uintptr_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcmp, memcpy, memset
from libcpp cimport bool as cbool
from libcpp.vector cimport vector

import numpy as np
import torch
import torch.nn.modules.module as modules


cdef extern from "Python.h":
    PyObject* PyTuple_GET_ITEM(tuple, Py_ssize_t)

cdef extern from "native.h" namespace "native" nogil:
    cdef struct Layer:
        int source, activation
        cbool transposed
        long n_in, n_out
        const float *w
        const float *b
        const float *scale
        const float *shift
        long dw, db, dscale, dshift
        float *panels
        float *padded_bias
    cdef struct Values:
        float *y
        float *z
        float *h
        float *slope
        float *dy
    cdef struct Kernels:
        pass
    long pad(long)
    long stride(long)
    const Kernels* kernels_of(int, int*)
    void run_forward(const Kernels&, const Layer*, const Values*, long, const float*, long, cbool, cbool)
    void run_backward(const Kernels&, const Layer*, const Values*, long, const float*, long, float*, long, char*, float*)
    double run_norm(const Kernels&, float**, const long*, long)
    void run_scale(const Kernels&, float**, const long*, long, float)
    void run_adam(const Kernels&, float**, float**, float**, float**, float**, const long*, long, double, double, double, double,
                  double)

cdef int LEVEL = 0
cdef const Kernels* KERNELS = kernels_of(2, &LEVEL)
cdef object TRACING = torch._C._get_tracing_state, COMPILING = torch.compiler.is_compiling
cdef object CASTING = torch.is_autocast_enabled, MODES = torch._C._len_torch_dispatch_stack
cdef tuple HOOKS = (modules._global_forward_hooks, modules._global_forward_pre_hooks, modules._global_backward_hooks,
                    modules._global_backward_pre_hooks)
cdef enum:
    CHUNK = 256  # rows of a forward pass that keeps nothing: their values stay in the cache
    FEW = 64  # up to so many rows take weights from panels, which stay packed as long as the weights are the same
cdef object FLOAT = torch.float32, STRIDED = torch.strided
ACTIVATIONS = ("identity", "tanh", "relu", "silu")


def level(int wanted=2):
    """Take the kernels of this level, or the best below it that the processor has, from now on; return which: 2 AVX-512, 1 AVX2
    with FMA, 0 neither. For tests; 1 and 2 give the same bits."""
    global KERNELS
    KERNELS = kernels_of(wanted, &LEVEL)
    return LEVEL


cdef float* pointer(object tensor) except? NULL:
    return <float*><uintptr_t>tensor.data_ptr()


cdef float* room(long n) except NULL:
    """`n` numbers, 0 each, from a multiple of 64 bytes on: the address that `free` takes stands before them."""
    cdef char* memory = <char*>calloc(n * sizeof(float) + 128, 1)
    if memory == NULL:
        raise MemoryError(f"{n} numbers for a network")
    cdef char* start = <char*>((<uintptr_t>memory + 127) // 64 * 64)
    (<char**>start - 1)[0] = memory
    return <float*>start


cdef void give_back(float* start) noexcept:
    if start != NULL:
        free((<char**>start - 1)[0])


cdef class Pass:
    """What a forward pass keeps for the backward pass: room for so many rows."""

    cdef float* memory
    cdef float* x
    cdef float* dx
    cdef vector[Values] values
    cdef readonly long rows, most

    def __cinit__(self, Network network, long most):
        cdef long i, ld, n = network.layers.size(), total = 2 * most * stride(network.n_in)
        for i in range(n):
            total += (4 * stride(network.layers[i].n_out) + 16) * most
        self.memory = room(total + 16 * n)
        self.most = most
        cdef float* at = self.memory
        self.x = at
        self.dx = at + most * stride(network.n_in)
        at += 2 * most * stride(network.n_in)
        cdef Values v
        for i in range(n):
            ld = most * stride(network.layers[i].n_out)
            v.y, v.dy, v.z, v.h, v.slope = at, at + ld, at + 2 * ld, at + 3 * ld, at + 4 * ld
            self.values.push_back(v)
            at += 4 * ld + (most + 15) // 16 * 16

    def __dealloc__(self):
        give_back(self.memory)


cdef class Network:
    """The network that a `parl_like.learning.native.NetworkLayers` describes, on the memory of its parameters.

    Several threads may compute with it. Nobody changes the parameters meanwhile.

    Args:
        description: The layers.

    Attributes:
        description: The same. parameters: Those of all layers, each once.
        size: Numbers in all of them. starts: Where the gradient of each begins in a flat array of `size`.
    """

    cdef vector[Layer] layers
    cdef long n_in, n_out
    cdef float* panels
    cdef list where  # for each layer the numbers of weight, bias, scale and shift in `parameters`, and their offset there
    cdef list watched  # dicts, and tuples of what they held
    cdef vector[float*] pointers
    cdef vector[long] sizes
    cdef list shapes
    cdef cbool moved  # a parameter has other memory than the layers know
    cdef vector[long] outputs
    cdef Pass scratch, spare
    cdef object flat, views
    cdef cbool packed
    cdef vector[float] before  # weights and biases of all layers when `forward` packed them; empty: it has not, or others have since
    cdef readonly object description
    cdef readonly tuple parameters
    cdef readonly list starts
    cdef readonly long size

    def __cinit__(self, description):
        cdef Layer layer
        cdef long total = 0
        self.description, self.n_in = description, description.n_in
        numbers, parameters, self.starts, self.where = {}, [], [], []
        for dense in description.dense:
            places = []
            for tensor in (dense.weight, dense.bias, *(dense.norm or (None, None))):
                if tensor is not None and id(tensor) not in numbers:
                    numbers[id(tensor)] = len(parameters)
                    parameters.append(tensor)
                    self.starts.append(self.size)
                    self.size += tensor.numel()
                if tensor is None:
                    places.append((-1, 0))
                else:
                    each = tensor.numel() // (1 if dense.member is None else tensor.shape[0])
                    places.append((numbers[id(tensor)], (dense.member or 0) * each))
            self.where.append(places)
            layer.source, layer.activation = dense.source, ACTIVATIONS.index(dense.activation)
            layer.transposed = dense.member is None
            layer.n_in, layer.n_out = dense.n_in, dense.n_out
            layer.dw, layer.db, layer.dscale, layer.dshift = [self.starts[k] + off if k >= 0 else -1 for k, off in places]
            self.layers.push_back(layer)
            total += (layer.n_in + 1) * pad(layer.n_out)
        self.outputs = list(description.outputs.values())
        self.parameters = tuple(parameters)
        self.pointers.assign(len(parameters), NULL)
        self.shapes, self.moved = [tensor.shape for tensor in parameters], True
        measure(parameters, self.sizes)
        self.panels = room(total)
        cdef float* at = self.panels
        cdef size_t i
        for i in range(self.layers.size()):
            self.layers[i].panels = at
            at += self.layers[i].n_in * pad(self.layers[i].n_out)
            self.layers[i].padded_bias = at
            at += pad(self.layers[i].n_out)

    def __dealloc__(self):
        give_back(self.panels)

    def __reduce__(self):
        """A copy is one of the copied parameters."""
        return Network, (self.description,)

    cdef cbool changed(self):
        """Whether an attribute, part, parameter or hook of the modules is another object than at first."""
        cdef PyObject *key
        cdef PyObject *value
        cdef Py_ssize_t at
        cdef Py_ssize_t i
        cdef tuple before
        if self.watched is None:
            watched = []
            for module in self.description.modules:
                inner = [one for name, one in vars(module).items() if isinstance(one, dict)]
                watched += [(one, tuple(one.values()), type(module) if one is vars(module) else None)
                            for one in (vars(module), *inner)]
            held = {id(one) for _, values, _ in watched for one in values}
            for parameter in self.parameters:
                if id(parameter) not in held:  # others are in their places for a while (torch.func)
                    return True
            self.watched = watched
        for own, before, kind in self.watched:
            if len(own) != len(before):  # notes of its user's do no harm, unless the class has something of that name
                if kind is None or len(own) < len(before) or any([hasattr(kind, name) for name in list(own)[len(before):]]):
                    return True
            at = i = 0
            while i < len(before) and PyDict_Next(own, &at, &key, &value):
                if PyTuple_GET_ITEM(before, i) != value and <object>key != "training":
                    return True
                i += 1
        return False

    cpdef cbool ready(self):
        """Return whether it computes what its modules do now."""
        cdef size_t i
        cdef float* now
        if self.changed():
            return False
        for i in range(self.pointers.size()):
            parameter = self.parameters[i]
            now = pointer(parameter)
            if parameter.numel() != self.sizes[i]:
                return False
            if now != self.pointers[i]:
                if not plain(parameter) or parameter.shape != self.shapes[i]:
                    return False
                self.pointers[i] = now
                self.moved = True
        if self.moved:
            for i in range(self.layers.size()):
                w, b, scale, shift = self.where[i]
                self.layers[i].w, self.layers[i].b = self.address(w), self.address(b)
                self.layers[i].scale, self.layers[i].shift = self.address(scale), self.address(shift)
            self.packed = self.moved = False
        return True

    def forward(self, const float[:, ::1] x not None):
        """Return the outputs of rows [N, n_in], [N, n_out] float32 each. `ready` has just said so.

        Raises:
            ValueError: the rows have another size.
        """
        cdef long rows = x.shape[0], begin, some, i
        self.check_rows(x.shape[1])
        if self.scratch is None or self.scratch.most < min(rows, CHUNK):
            self.scratch = Pass(self, min(max(rows, 16), CHUNK))
        out = [np.empty((rows, self.layers[i].n_out), np.float32) for i in self.outputs]
        cdef cbool few = rows <= FEW, packed = few and self.packed and self.same()
        if few and not packed:
            self.note()
        for begin in range(0, rows, CHUNK):
            some = min(rows - begin, CHUNK)
            self.enter(self.scratch, &x[begin, 0], some)
            run_forward(KERNELS[0], self.layers.data(), self.scratch.values.data(), self.layers.size(), self.scratch.x, some, few,
                        packed)
            for i in range(<long>self.outputs.size()):
                self.leave(self.scratch, self.outputs[i], out[i], begin, some)
        self.packed = self.packed or few
        return out

    def keep(self, const float[:, ::1] x not None):
        """As `forward`: return the outputs, and what `backward` needs."""
        cdef long rows = x.shape[0], i
        self.check_rows(x.shape[1])
        cdef Pass kept = self.spare
        self.spare = None
        if kept is None or kept.most < rows:
            kept = Pass(self, rows)
        kept.rows = rows
        out = [np.empty((rows, self.layers[i].n_out), np.float32) for i in self.outputs]
        if rows:
            self.enter(kept, &x[0, 0], rows)
        with nogil:
            run_forward(KERNELS[0], self.layers.data(), kept.values.data(), self.layers.size(), kept.x, rows, False, False)
        for i in range(<long>self.outputs.size()):
            self.leave(kept, self.outputs[i], out[i], 0, rows)
        return out, kept

    cpdef cbool learns(self):
        """Return whether it is ready, and all its parameters take gradients that are put into them."""
        if watched() or not self.ready() or not torch.is_grad_enabled() or torch.is_inference_mode_enabled():
            return False
        for parameter in self.parameters:
            if not learnable(parameter):
                return False
        return True

    def write(self, Pass kept not None, list gradients not None):
        """As `backward`, with the gradients into `grad` of the parameters: views of one array, which the next call overwrites.
        `kept` is used no more."""
        if self.flat is None:
            self.flat = np.zeros(self.size, np.float32)
            whole = torch.from_numpy(self.flat)
            self.views = [whole[begin : begin + parameter.numel()].view(parameter.shape)
                          for begin, parameter in zip(self.starts, self.parameters)]
        self.backward(kept, gradients, self.flat, last=True)
        for parameter, view in zip(self.parameters, self.views):
            parameter.grad = view

    def backward(self, Pass kept not None, list gradients not None, float[::1] into, *, cbool to_input=False, cbool last=False):
        """Write the gradients of all parameters into the flat array `into` [size]; None: these are not wanted.

        Args:
            kept: Of a call of `keep`, since which the parameters have not changed.
            gradients: Of the outputs, [N, n_out] float32 each; None: 0.
            to_input: Return the gradient of the input, too, [N, n_in].
            last: `kept` is used no more, and may serve the next `keep`.
        """
        cdef vector[char] wanted
        cdef const float[:, ::1] one
        cdef long i, k, r, rows = kept.rows, ld, n_out
        cdef float* d
        cdef float* to = NULL
        if into is not None and into.shape[0] == self.size:
            to = &into[0]
        if (to == NULL and into is not None) or len(gradients) != <long>self.outputs.size():
            raise ValueError(f"backward: room for {into.shape[0]} numbers and {len(gradients)} gradients of outputs; expected "
                             f"{self.size} and {self.outputs.size()}")
        wanted.assign(self.layers.size(), 0)
        for k in range(<long>self.outputs.size()):
            if gradients[k] is None:
                continue
            one, i = gradients[k], self.outputs[k]
            n_out, d = self.layers[i].n_out, kept.values[i].dy
            if one.shape[0] != rows or one.shape[1] != n_out:
                raise ValueError(f"backward: the gradient of output {k} is {one.shape[0]} × {one.shape[1]}; expected {rows} × "
                                 f"{n_out}")
            ld = stride(n_out)
            for r in range(rows):
                memcpy(d + r * ld, &one[r, 0], n_out * sizeof(float))
                memset(d + r * ld + n_out, 0, (ld - n_out) * sizeof(float))
            wanted[i] = 1
        with nogil:
            run_backward(KERNELS[0], self.layers.data(), kept.values.data(), self.layers.size(), kept.x, self.n_in,
                         kept.dx if to_input else NULL, rows, wanted.data(), to)
        result = None
        cdef float[:, ::1] dx
        if to_input:
            result = np.empty((rows, self.n_in), np.float32)
            dx = result
            for r in range(rows):
                memcpy(&dx[r, 0], kept.dx + r * stride(self.n_in), self.n_in * sizeof(float))
        if last:
            self.spare = kept
        return result

    cdef cbool same(self) noexcept:
        """Whether weights and biases are those that were packed, bit for bit. To compare takes a fifth of the time of packing."""
        cdef size_t i, at = 0, n
        if self.before.empty():
            return False
        for i in range(self.layers.size()):
            n = self.layers[i].n_in * self.layers[i].n_out
            if memcmp(self.layers[i].w, &self.before[at], n * sizeof(float)):
                return False
            at += n
            n = self.layers[i].n_out
            if self.layers[i].b != NULL and memcmp(self.layers[i].b, &self.before[at], n * sizeof(float)):
                return False
            at += n
        return True

    cdef int note(self) except -1:
        cdef size_t i, at = 0, n
        if self.before.empty():
            for i in range(self.layers.size()):
                at += (self.layers[i].n_in + 1) * self.layers[i].n_out
            self.before.resize(at)
        at = 0
        for i in range(self.layers.size()):
            n = self.layers[i].n_in * self.layers[i].n_out
            memcpy(&self.before[at], self.layers[i].w, n * sizeof(float))
            at += n
            n = self.layers[i].n_out
            if self.layers[i].b != NULL:
                memcpy(&self.before[at], self.layers[i].b, n * sizeof(float))
            at += n
        return 0

    cdef float* address(self, tuple place) except? NULL:
        if place[0] < 0:
            return NULL
        return self.pointers[<long>place[0]] + <long>place[1]

    cdef int check_rows(self, long n_in) except -1:
        if n_in != self.n_in:
            raise ValueError(f"a native network got rows of {n_in} numbers; expected {self.n_in}")
        return 0

    cdef void enter(self, Pass to, const float* x, long rows) noexcept:
        cdef long r, ld = stride(self.n_in)  # what lies behind the numbers of a row stays 0
        for r in range(rows):
            memcpy(to.x + r * ld, x + r * self.n_in, self.n_in * sizeof(float))

    cdef int leave(self, Pass kept, long layer, float[:, ::1] out, long begin, long rows) except -1:
        cdef long r, n = self.layers[layer].n_out, ld = stride(n)
        for r in range(rows):
            memcpy(&out[begin + r, 0], kept.values[layer].y + r * ld, n * sizeof(float))
        return 0


def plain(tensor):
    """Return whether a tensor is dense float32 on the CPU, and its memory is its own and in order."""
    return (tensor.dtype is torch.float32 and tensor.layout is torch.strided and tensor.device.type == "cpu"
            and tensor.is_contiguous() and not tensor.is_neg() and not tensor.is_conj())


cpdef cbool watched():
    """Return whether torch records, casts or watches what this thread computes: then it has to compute it."""
    for hooks in HOOKS:
        if hooks:
            return True
    return TRACING() is not None or MODES() > 0 or COMPILING() or CASTING("cpu")


def hooked(tensor):
    """Return whether a tensor has hooks, which a gradient that is put into it would pass by."""
    return bool(tensor._backward_hooks) or bool(tensor._post_accumulate_grad_hooks)


cpdef cbool learnable(tensor):
    """Return whether a parameter takes a gradient, and has no hooks."""
    return tensor.requires_grad and not hooked(tensor)


def dense(list parameters not None, list gradients not None):
    """Return whether parameters and their gradients are all `plain`. A gradient has its parameter's type and device."""
    for tensor in parameters:
        if tensor.dtype is not FLOAT or not tensor.is_cpu or not tensor.is_contiguous():
            return False
    for tensor in gradients:
        if tensor.layout is not STRIDED or not tensor.is_contiguous():
            return False
    return True


def have(list tensors not None, list sizes not None):
    """Return whether tensors have so many numbers, one after the other."""
    cdef Py_ssize_t i
    for i in range(len(tensors)):
        if tensors[i].numel() != sizes[i]:
            return False
    return True


cdef gather(list tensors, vector[float*]& pointers):
    for tensor in tensors:
        pointers.push_back(pointer(tensor))


cdef measure(list tensors, vector[long]& sizes):
    for tensor in tensors:
        sizes.push_back(tensor.numel())


def norm(list tensors not None):
    """√ of the sum of the squares of all numbers in `plain` tensors; infinite where float32 holds no such sum."""
    cdef vector[float*] parts
    cdef vector[long] sizes
    gather(tensors, parts)
    measure(tensors, sizes)
    cdef double sum = run_norm(KERNELS[0], parts.data(), sizes.data(), parts.size())
    return sqrt(sum) if sum <= 3.4028234663852886e38 else sum * np.inf


def scale(list tensors not None, float factor):
    """Multiply all numbers in `plain` tensors."""
    cdef vector[float*] parts
    cdef vector[long] sizes
    gather(tensors, parts)
    measure(tensors, sizes)
    run_scale(KERNELS[0], parts.data(), sizes.data(), parts.size(), factor)


def adam(list parameters not None, list gradients not None, list moments not None, list squares not None, list steps not None,
         list counts not None, *, double lr, double beta1, double beta2, double eps, double weight_decay):
    """One step of Adam, in place; all are `plain` tensors. `steps`: of each parameter its count, one of `counts`, which are raised
    first."""
    cdef vector[float*] p, g, m, v, s
    for count in counts:
        pointer(count)[0] += 1.0
    cdef vector[long] sizes
    gather(parameters, p)
    gather(gradients, g)
    gather(moments, m)
    gather(squares, v)
    gather(steps, s)
    measure(parameters, sizes)
    run_adam(KERNELS[0], p.data(), g.data(), m.data(), v.data(), s.data(), sizes.data(), p.size(), lr, beta1, beta2, eps,
             weight_decay)
