# distutils: language = c++
# distutils: extra_compile_args = -std=c++17
# distutils: depends = envs/sokoban/boards.h envs/sokoban/levels.h
# cython: boundscheck=False, wraparound=False, cdivision=True
"""n Sokoban boards in one object, and the reading, making and solving of levels: boards.h and levels.h, with checked arguments.

Arrays of the caller are refused unless they are C-contiguous, of the right type and size (TypeError, ValueError, naming the argument);
then nothing is copied or converted. The work itself runs without the GIL.
"""

from cpython.buffer cimport PyBUF_C_CONTIGUOUS, PyBUF_FORMAT, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint64_t
from libc.string cimport memcpy, memset
from libcpp cimport bool as cbool
from libcpp.string cimport string
from libcpp.vector cimport vector

import numpy as np


cdef extern from "boards.h" namespace "sokoban":
    enum: MAX_CELLS
    enum: CODES
    cdef cppclass CMap "sokoban::Map":
        int size, cells
    cdef struct CRng "sokoban::Rng":
        uint64_t state
        void seed(uint64_t)
    cdef struct CBoard "sokoban::Board":
        CRng rng
        int64_t level
        int32_t counter
        int left
        uint8_t player, shown
        cbool done, stale
        uint8_t flags[100]
    cdef struct COptions "sokoban::Options":
        int64_t n_levels
        int size, n_danger, max_steps, autoreset
        cbool pomdp, planes
    cdef struct COut "sokoban::Out":
        uint8_t* obs
        float* rew32
        double* rew64
        uint8_t* terminated
        uint8_t* truncated
        uint8_t* cost
        cbool in_place
    cdef cppclass CBoards "sokoban::Boards":
        COptions options
        CMap map
        int64_t obs_bytes
        vector[CBoard] boards, ended
        CBoards(int64_t, const COptions&, const uint8_t*, const uint8_t*) except +
        void reset(CBoard&, int64_t, int64_t) nogil
        int look_up(CBoard&) nogil
        int64_t bad_action(const int64_t*) nogil
        int64_t step(const int64_t*, const COut&) nogil
        void observe(CBoard&, uint8_t*, cbool) nogil
        void draw(CBoard&, uint8_t*) nogil
    const uint8_t* FLAGS_OF "sokoban::FLAGS_OF"
    int code_of(uint8_t) nogil
    void unpack_cells "sokoban::unpack"(const uint8_t*, int, uint8_t*) nogil
    void pack_cells "sokoban::pack"(const uint8_t*, int, uint8_t*) nogil
    int packed_bytes(int)

cdef extern from "levels.h" namespace "sokoban":
    cdef struct CParsed "sokoban::Parsed":
        int size
        int64_t n_levels, line, level
        string error
        vector[uint8_t] packed
    CParsed c_parse "sokoban::parse"(const char*, int64_t, int, int) except + nogil
    string c_fault "sokoban::fault_of"(const uint8_t*, int, int) except +
    cdef struct CSolution "sokoban::Solution":
        int status
        int64_t expanded
        int pushes
        string actions
    cdef cppclass CSolver "sokoban::Solver":
        CSolver(const uint8_t*, int) except +
        CSolution run(int64_t) except + nogil
    cdef cppclass CMaker "sokoban::Maker":
        CMaker(int, int, int) except +
        cbool make(uint64_t, uint64_t, uint8_t*) nogil


cdef class View:
    """An array of the caller, checked, for the length of one call."""

    cdef Py_buffer buffer
    cdef bint held

    def __dealloc__(self):
        if self.held:
            PyBuffer_Release(&self.buffer)

    cdef void* of(self, object array, str name, str formats, Py_ssize_t length, bint writable) except NULL:
        """`formats`: the type letters that will do. `length`: items."""
        try:
            PyObject_GetBuffer(array, &self.buffer, PyBUF_C_CONTIGUOUS | PyBUF_FORMAT | (PyBUF_WRITABLE if writable else 0))
        except (TypeError, ValueError, BufferError) as error:
            raise TypeError(f"Boards: {name}: expected a {'writable ' if writable else ''}C-contiguous array; {error}") from None
        self.held = True
        cdef str letter = chr(self.buffer.format[0])
        if letter not in formats or self.buffer.format[1] != 0:
            raise TypeError(f"Boards: {name} has items of type {self.buffer.format.decode()!r}; expected one of {formats!r}")
        if self.buffer.len != length * self.buffer.itemsize:
            raise ValueError(f"Boards: {name} has {self.buffer.len // self.buffer.itemsize} items; expected {length}")
        return self.buffer.buf


cdef void* fetch(View view, object array, str name, str formats, Py_ssize_t length, bint writable) except NULL:
    return view.of(array, name, formats, length, writable)


# Types by the letter of the buffer protocol; int64 is 'l' or 'q', as the platform has it.
cdef str BYTES = "B"
cdef str FLAGS = "?B"
cdef str INT64 = np.dtype(np.int64).char + ("lq" if np.dtype("l").itemsize == 8 else "q")


cdef class Boards:
    """n boards of one size that are reset, stepped and drawn together, without Python per board.

    Not for two threads at once: a second call meanwhile raises RuntimeError. `n` boards step one after the other on the calling
    thread, without the GIL.

    Args:
        n: Boards, at least 1.
        size: Cells along a side, 3 to 10.
        levels: [n_levels, (size² + 1) // 2] uint8, two tile codes a byte, low half first. Kept, not copied.
        sprites: [10, 3, 8, 8] uint8: an image for each tile code. Copied.
        n_danger: Empty floor cells that become danger at each reset.
        max_steps: The step that begins with the counter at max_steps − 1, or above, ends the game.
        autoreset: 0 never (a game that is over stays so, with reward 0), 1 with the next step, 2 with the same step.
        pomdp: Observations show the player one random feasible step from where it is.
        planes: Observations are [5, size, size] of 0 and 1 (wall, target, box, player, danger) instead of [3, 8·size, 8·size] images.
    """

    cdef CBoards* core
    cdef object levels
    cdef object bound  # the array in which the last frames are, if drawn in place
    cdef bint busy
    cdef readonly Py_ssize_t n
    cdef readonly int size
    cdef readonly Py_ssize_t n_levels
    cdef readonly tuple obs_shape

    def __cinit__(self, Py_ssize_t n, int size, levels, sprites, *, int n_danger=0, int max_steps=120, int autoreset=0,
                  bint pomdp=False, bint planes=False):
        if n < 1:
            raise ValueError(f"Boards: n is {n}; expected at least 1")
        if not 3 <= size <= 10:
            raise ValueError(f"Boards: size is {size}; expected 3 to 10")
        if n_danger < 0:
            raise ValueError(f"Boards: n_danger is {n_danger}; expected 0 or more")
        if max_steps < 7:
            raise ValueError(f"Boards: max_steps is {max_steps}; expected at least 7, for the counter starts at up to 5")
        if not 0 <= autoreset <= 2:
            raise ValueError(f"Boards: autoreset is {autoreset}; expected 0, 1 or 2")
        cdef View view = View(), image = View()
        cdef Py_ssize_t row = packed_bytes(size * size)
        self.n_levels = len(levels)
        if self.n_levels < 1:
            raise ValueError("Boards: there are no levels")
        cdef COptions options
        options.n_levels = self.n_levels
        options.size, options.n_danger, options.max_steps, options.autoreset = size, n_danger, max_steps, autoreset
        options.pomdp, options.planes = pomdp, planes
        cdef const uint8_t* packed = <const uint8_t*> fetch(view, levels, "levels", BYTES, self.n_levels * row, False)
        cdef const uint8_t* drawn = <const uint8_t*> fetch(image, sprites, "sprites", BYTES, CODES * 3 * 64, False)
        self.core = new CBoards(n, options, packed, drawn)
        self.levels = view  # keeps the memory where it is
        self.n, self.size = n, size
        if planes:
            self.obs_shape = (5, size, size)
        else:
            self.obs_shape = (3, 8 * size, 8 * size)
        cdef Py_ssize_t i
        for i in range(n):
            self.core.boards[i].rng.seed(i)
            self.core.reset(self.core.boards[i], -1, -1)

    def __dealloc__(self):
        del self.core

    def __reduce__(self):
        raise TypeError("Boards cannot be pickled; use clone_state and restore_state")

    cdef int take(self) except -1:
        if self.busy:
            raise RuntimeError("Boards: another thread is in a call of the same boards")
        self.busy = True
        return 0

    cdef Py_ssize_t index(self, object i) except -1:
        cdef Py_ssize_t k = i
        if self.busy:
            raise RuntimeError("Boards: another thread is in a call of the same boards")
        if not 0 <= k < self.n:
            raise IndexError(f"Boards: there is no board {k}; there are {self.n}")
        return k

    def seed(self, Py_ssize_t board, seed):
        """Seeds a board's own generator; it takes effect with the next number drawn (level, danger, counter, shown step).

        Args:
            seed: 0 ≤ seed < 2⁶⁴.
        """
        self.core.boards[self.index(board)].rng.seed(seed)

    def reset(self, boards=None, *, level=None, counter=None):
        """Begins new games. Draws nothing: `observe` does, or the next step.

        Args:
            boards: Indices; None: all.
            level: Index of the level; None: drawn, each board its own.
            counter: Where the step counter starts, 0 ≤ counter < max_steps; None: drawn from 0 to 5.
        """
        cdef int64_t at_level = -1, at_counter = -1
        cdef Py_ssize_t i
        if level is not None:
            at_level = level
            if not 0 <= at_level < self.n_levels:
                raise ValueError(f"Boards.reset: there is no level {level}; there are {self.n_levels}")
        if counter is not None:
            at_counter = counter
            if not 0 <= at_counter < self.core.options.max_steps:
                raise ValueError(f"Boards.reset: counter is {counter}; expected 0 to {self.core.options.max_steps - 1}")
        indices = None if boards is None else [self.index(i) for i in boards]
        self.take()
        try:
            if indices is None:
                with nogil:
                    for i in range(self.n):
                        self.core.reset(self.core.boards[i], at_level, at_counter)
            else:
                for k in indices:
                    self.core.reset(self.core.boards[<Py_ssize_t> k], at_level, at_counter)
        finally:
            self.busy = False

    def observe(self, obs, bint in_place=False):
        """Writes the observations as they are now.

        Args:
            obs: [n, *obs_shape] uint8.
            in_place: `obs` is the array of the call before, as that call left it: only boards that were reset or restored since are
                drawn. With another array than that everything is drawn.
        """
        cdef View view = View()
        cdef uint8_t* out = <uint8_t*> fetch(view, obs, "obs", BYTES, self.n * self.core.obs_bytes, True)
        cdef cbool same = in_place and obs is self.bound
        cdef Py_ssize_t i
        self.take()
        with nogil:
            for i in range(self.n):
                self.core.observe(self.core.boards[i], out + i * self.core.obs_bytes, same)
        self.busy = False
        self.bound = obs if in_place else None

    def step(self, actions, rew, terminated, truncated, obs=None, cost=None, bint in_place=False):
        """One step of every board.

        Args:
            actions: [n] int64: 0 stay, 1 up, 2 down, 3 left, 4 right. One that does not exist raises ValueError before anything moves;
                that of a board that begins anew (autoreset 1) is not looked at.
            rew: [n] float32 or float64, written.
            terminated: [n] bool, written: no box is left.
            truncated: [n] bool, written: the step limit.
            obs: [n, *obs_shape] uint8, written. After an automatic reset with the same step it is of the new game. None: draws nothing.
            cost: [n] bool, written: the player stands on danger. None: not wanted.
            in_place: `obs` is the array of the call before, as that call left it: only cells that change are drawn again. With another
                array than that everything is drawn.

        Returns:
            How many boards this step ended.
        """
        cdef View of_actions = View(), of_rew = View(), of_terminated = View(), of_truncated = View(), of_obs, of_cost
        cdef COut out
        memset(&out, 0, sizeof(out))
        cdef const int64_t* acts = <const int64_t*> fetch(of_actions, actions, "actions", INT64, self.n, False)
        cdef void* to = fetch(of_rew, rew, "rew", "fd", self.n, True)
        if of_rew.buffer.itemsize == 4:
            out.rew32 = <float*> to
        else:
            out.rew64 = <double*> to
        out.terminated = <uint8_t*> fetch(of_terminated, terminated, "terminated", FLAGS, self.n, True)
        out.truncated = <uint8_t*> fetch(of_truncated, truncated, "truncated", FLAGS, self.n, True)
        if obs is not None:
            of_obs = View()
            out.obs = <uint8_t*> fetch(of_obs, obs, "obs", BYTES, self.n * self.core.obs_bytes, True)
            out.in_place = in_place and obs is self.bound
        if cost is not None:
            of_cost = View()
            out.cost = <uint8_t*> fetch(of_cost, cost, "cost", FLAGS, self.n, True)
        cdef int64_t bad = self.core.bad_action(acts), ended
        if bad >= 0:
            raise ValueError(f"Boards.step: board {bad} got action {acts[bad]}; expected 0 to 4")
        self.take()
        with nogil:
            ended = self.core.step(acts, out)
        self.busy = False
        self.bound = obs if in_place else None
        return ended

    def final_obs(self, Py_ssize_t board, out):
        """Writes what a board showed when it last ended, before the automatic reset with the same step.

        Args:
            out: [*obs_shape] uint8.
        """
        cdef View view = View()
        self.core.draw(self.core.ended[self.index(board)], <uint8_t*> fetch(view, out, "out", BYTES, self.core.obs_bytes, True))

    def level_of(self, Py_ssize_t board, bint ended=False):
        """Index of the level that a board plays, or (`ended`) of its game that the same step's automatic reset wiped out."""
        cdef CBoard* b = &self.core.ended[self.index(board)] if ended else &self.core.boards[self.index(board)]
        return b.level

    def counter_of(self, Py_ssize_t board):
        """The board's step counter."""
        return self.core.boards[self.index(board)].counter

    def tiles(self, Py_ssize_t board, bint ended=False):
        """[size, size] uint8 tile codes of a board as it truly is (or was when it last ended), newly allocated."""
        cdef CBoard* b = &self.core.ended[self.index(board)] if ended else &self.core.boards[self.index(board)]
        out = np.empty((self.size, self.size), np.uint8)
        cdef uint8_t[::1] flat = out.reshape(-1)
        cdef int i
        for i in range(self.core.map.cells):
            flat[i] = <uint8_t> code_of(b.flags[i])
        return out

    def clone_state(self, boards=None):
        """Everything that what comes next depends on, generators included.

        Args:
            boards: Indices; None: all.

        Returns:
            Dict of newly allocated arrays, m the number of boards: `tiles` [m, size, size] uint8 codes, `counter` [m] int32, `done` [m]
            bool, `level` [m] int64, `shown` [m] uint8 (cell where the observation has the player), `rng` [m] uint64.
        """
        cdef list indices = [self.index(i) for i in (range(self.n) if boards is None else boards)]
        cdef Py_ssize_t m = len(indices), k, cells = self.core.map.cells, i
        state = {
            "tiles": np.empty((m, self.size, self.size), np.uint8), "counter": np.empty(m, np.int32), "done": np.empty(m, np.bool_),
            "level": np.empty(m, np.int64), "shown": np.empty(m, np.uint8), "rng": np.empty(m, np.uint64),
        }
        cdef uint8_t[::1] tiles = state["tiles"].reshape(-1), done = state["done"].view(np.uint8), shown = state["shown"]
        cdef int32_t[::1] counter = state["counter"]
        cdef int64_t[::1] level = state["level"]
        cdef uint64_t[::1] rng = state["rng"]
        cdef CBoard* board
        for k in range(m):
            board = &self.core.boards[<Py_ssize_t> indices[k]]
            for i in range(cells):
                tiles[k * cells + i] = <uint8_t> code_of(board.flags[i])
            counter[k], done[k], level[k], shown[k] = board.counter, board.done, board.level, board.shown
            rng[k] = board.rng.state
        return state

    def restore_state(self, state, boards=None):
        """Puts boards back. Draws nothing: `observe` does, or the next step.

        Args:
            state: What `clone_state` returned, of as many boards; also of other boards or another object of the same size. Checked
                before any board changes.
            boards: Indices; None: all.

        Raises:
            ValueError: an array is missing, or does not fit; a board has not exactly one player, or a counter, level or shown cell that
                cannot be.
        """
        cdef list indices = [self.index(i) for i in (range(self.n) if boards is None else boards)]
        cdef Py_ssize_t m = len(indices), k, cells = self.core.map.cells, i
        wanted = {"tiles": ((m, self.size, self.size), np.uint8), "counter": ((m,), np.int32), "done": ((m,), np.bool_),
                  "level": ((m,), np.int64), "shown": ((m,), np.uint8), "rng": ((m,), np.uint64)}
        arrays = {}
        for name, (shape, dtype) in wanted.items():
            if name not in state:
                raise ValueError(f"Boards.restore_state: {name!r} is missing")
            array = np.asarray(state[name])
            if array.shape != shape or array.dtype != dtype:
                raise ValueError(f"Boards.restore_state: {name!r} is {array.shape} {array.dtype}; expected {shape} {np.dtype(dtype)}")
            arrays[name] = np.ascontiguousarray(array)
        cdef const uint8_t[::1] tiles = arrays["tiles"].reshape(-1), done = arrays["done"].view(np.uint8), shown = arrays["shown"]
        cdef const int32_t[::1] counter = arrays["counter"]
        cdef const int64_t[::1] level = arrays["level"]
        cdef const uint64_t[::1] rng = arrays["rng"]
        cdef vector[CBoard] fresh
        cdef CBoard* board
        fresh.resize(m)
        for k in range(m):
            board = &fresh[k]
            board.rng.state, board.level, board.counter, board.done = rng[k], level[k], counter[k], done[k] != 0
            board.stale = True
            for i in range(cells):
                if tiles[k * cells + i] >= CODES:
                    raise ValueError(f"Boards.restore_state: row {k} has the tile code {tiles[k * cells + i]}; codes are 0 to 9")
                board.flags[i] = FLAGS_OF[tiles[k * cells + i]]
            if self.core.look_up(board[0]) != 1:
                raise ValueError(f"Boards.restore_state: row {k} has not exactly one player")
            if board.left == 0 and not board.done:
                raise ValueError(f"Boards.restore_state: row {k} has no box left but is not done")
            if not 0 <= board.counter < self.core.options.max_steps:
                raise ValueError(f"Boards.restore_state: row {k} has the counter {board.counter}; "
                                 f"expected 0 to {self.core.options.max_steps - 1}")
            if not 0 <= board.level < self.n_levels:
                raise ValueError(f"Boards.restore_state: row {k} is of level {board.level}; there are {self.n_levels}")
            board.shown = shown[k]
            if board.shown >= cells or (board.shown != board.player and tiles[k * cells + board.shown] not in (1, 6, 7)):
                raise ValueError(f"Boards.restore_state: row {k} shows the player at cell {board.shown}, where it cannot be")
        self.take()
        for k in range(m):
            self.core.boards[<Py_ssize_t> indices[k]] = fresh[k]
        self.busy = False


def parse(const unsigned char[::1] text not None, int size, int n_boxes):
    """Reads the text of one file.

    Args:
        size: Cells along a side; 0: as the first row has characters.
        n_boxes: Of every level; 0: any number.

    Returns:
        (size, packed [n_levels, (size² + 1) // 2] uint8, None), or where the text is wrong (line from 1, level from 0, what).
    """
    cdef CParsed parsed
    cdef const char* begin = <const char*> &text[0] if text.shape[0] else NULL
    cdef int64_t length = text.shape[0]
    with nogil:
        parsed = c_parse(begin, length, size, n_boxes)
    if not parsed.error.empty():
        return parsed.line, parsed.level, parsed.error.decode()
    out = np.empty((parsed.n_levels, packed_bytes(parsed.size * parsed.size)), np.uint8)
    cdef uint8_t[:, ::1] rows = out
    memcpy(&rows[0, 0], parsed.packed.data(), parsed.packed.size())
    return parsed.size, out, None


def unpack(const unsigned char[::1] packed not None, int size):
    """[size, size] uint8 tile codes of one packed level."""
    if packed.shape[0] != packed_bytes(size * size):
        raise ValueError(f"unpack: {packed.shape[0]} bytes; expected {packed_bytes(size * size)}")
    cdef uint8_t flags[100]
    cdef int i
    unpack_cells(&packed[0], size * size, flags)
    out = np.empty((size, size), np.uint8)
    cdef uint8_t[::1] flat = out.reshape(-1)
    for i in range(size * size):
        flat[i] = <uint8_t> code_of(flags[i])
    return out


cdef int flags_from(const unsigned char[:, ::1] tiles, uint8_t* flags) except -1:
    cdef int i, size = tiles.shape[0]
    if tiles.shape[0] != tiles.shape[1] or not 3 <= size <= 10:
        raise ValueError(f"tiles are {tiles.shape[0]} × {tiles.shape[1]}; expected a square of 3 to 10")
    for i in range(size * size):
        if tiles[i // size, i % size] >= CODES:
            raise ValueError(f"tiles hold the code {tiles[i // size, i % size]}; codes are 0 to 9")
        flags[i] = FLAGS_OF[tiles[i // size, i % size]]
    return 0


def fault(const unsigned char[:, ::1] tiles not None, int n_boxes):
    """What makes [size, size] uint8 tile codes no playable level, or ''."""
    cdef uint8_t flags[100]
    flags_from(tiles, flags)
    return c_fault(flags, tiles.shape[0] * tiles.shape[0], n_boxes).decode()


def solve(const unsigned char[:, ::1] tiles not None, long long limit):
    """A* over pushes: (status 1 solved, 0 cannot be solved, −1 limit reached; positions looked at; pushes; actions as bytes 1 to 4).

    Args:
        tiles: [size, size] uint8 codes with one player and at most 7 boxes.
        limit: Positions.
    """
    cdef uint8_t flags[100]
    cdef CSolution solution
    cdef int boxes = 0, i
    flags_from(tiles, flags)
    problem = c_fault(flags, tiles.shape[0] * tiles.shape[0], 0).decode()
    if problem:
        raise ValueError(f"solve: {problem}")
    for i in range(tiles.shape[0] * tiles.shape[0]):
        boxes += (flags[i] >> 2) & 1
    if boxes > 7:
        raise ValueError(f"solve: {boxes} boxes; the solver takes at most 7")
    cdef CSolver* solver = new CSolver(flags, tiles.shape[0])
    try:
        with nogil:
            solution = solver.run(limit)
    finally:
        del solver
    return solution.status, solution.expanded, solution.pushes, <bytes> solution.actions


def make(int size, int n_boxes, Py_ssize_t n, uint64_t seed, uint64_t first, int min_pushes):
    """Makes levels `first` … `first + n − 1` of the stream `seed`: (packed [n, (size² + 1) // 2] uint8, how many could be made)."""
    cdef Py_ssize_t row = packed_bytes(size * size), i
    out = np.zeros((n, row), np.uint8)
    cdef uint8_t[:, ::1] rows = out
    cdef uint8_t flags[100]
    cdef Py_ssize_t made = n
    cdef CMaker* maker = new CMaker(size, n_boxes, min_pushes)
    try:
        with nogil:
            for i in range(n):
                if not maker.make(seed, first + <uint64_t> i, flags):
                    made = i
                    break
                pack_cells(flags, size * size, &rows[i, 0])
    finally:
        del maker
    return out, made
