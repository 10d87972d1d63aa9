// The rules of Sokoban on n boards at once, and what is seen of them. No Python here: everything may run without the GIL.
//
// A cell is a set of flags, not a tile code: moving is then an exclusive-or of one flag, a target or a danger under a box needs no
// case of its own, and the symbolic planes are the flags' bits. Codes (0 wall ... 9 player on danger) exist at the border only.

#ifndef PARL_LIKE_SOKOBAN_BOARDS_H
#define PARL_LIKE_SOKOBAN_BOARDS_H

#include <stdint.h>
#include <string.h>

#include <vector>

namespace sokoban {

enum { MIN_SIZE = 3, MAX_SIZE = 10, MAX_CELLS = MAX_SIZE * MAX_SIZE, TILE = 8, PLANES = 5, CODES = 10, ACTIONS = 5 };
enum : uint8_t { FLOOR = 0, WALL = 1, TARGET = 2, BOX = 4, PLAYER = 8, DANGER = 16 };  // bit k is plane k
enum { ALL_FLAGS = 32, BLOCKED = WALL | BOX };
enum Autoreset { DISABLED = 0, NEXT_STEP = 1, SAME_STEP = 2 };

// Tile codes, in their order, as flags; what else a nibble may say is a wall.
static const uint8_t FLAGS_OF[16] = {
    WALL, FLOOR, BOX, BOX | TARGET, PLAYER, PLAYER | TARGET, TARGET, DANGER, BOX | DANGER, PLAYER | DANGER, WALL, WALL, WALL, WALL, WALL, WALL,
};

inline int code_of(uint8_t flags) {
    for (int code = 0; code < CODES; code++)
        if (FLAGS_OF[code] == flags) return code;
    return 0;
}

// SplitMix64 (Steele, Lea and Flood 2014), integers only: the same numbers on every platform, and its whole state is one number.
inline uint64_t mix(uint64_t z) {
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return z ^ (z >> 31);
}

struct Rng {
    uint64_t state;

    void seed(uint64_t seed) { state = mix(seed + 0x9E3779B97F4A7C15ull); }

    uint32_t next() { return (uint32_t)(mix(state += 0x9E3779B97F4A7C15ull) >> 32); }

    // Uniform in 0 ... n - 1, exactly: numbers of the last, incomplete block are drawn again.
    uint32_t below(uint32_t n) {
        const uint32_t incomplete = (uint32_t)(-n) % n;
        for (;;) {
            const uint64_t product = (uint64_t)next() * n;
            if ((uint32_t)product >= incomplete) return (uint32_t)(product >> 32);
        }
    }
};

// Which cell lies in which direction: [action][cell], -1 outside. Action 0 stays.
struct Map {
    int size, cells;
    int16_t next[ACTIONS][MAX_CELLS];

    explicit Map(int size_) : size(size_), cells(size_ * size_) {
        static const int DX[ACTIONS] = {0, 0, 0, -1, 1}, DY[ACTIONS] = {0, -1, 1, 0, 0};  // no-op, up, down, left, right
        for (int action = 0; action < ACTIONS; action++)
            for (int y = 0; y < size; y++)
                for (int x = 0; x < size; x++) {
                    const int to_x = x + DX[action], to_y = y + DY[action];
                    const bool inside = to_x >= 0 && to_x < size && to_y >= 0 && to_y < size;
                    next[action][y * size + x] = (int16_t)(inside ? to_y * size + to_x : -1);
                }
    }
};

// A level takes a nibble a cell: 50 bytes for 10x10, so Boxoban's 900,000 are 45 MB.
inline int packed_bytes(int cells) { return (cells + 1) / 2; }

inline void pack(const uint8_t *flags, int cells, uint8_t *packed) {
    for (int i = 0; i < cells; i += 2)
        packed[i / 2] = (uint8_t)(code_of(flags[i]) | (i + 1 < cells ? code_of(flags[i + 1]) << 4 : 0));
}

inline void unpack(const uint8_t *packed, int cells, uint8_t *flags) {
    for (int i = 0; i + 1 < cells; i += 2) {
        flags[i] = FLAGS_OF[packed[i / 2] & 15];
        flags[i + 1] = FLAGS_OF[packed[i / 2] >> 4];
    }
    if (cells % 2) flags[cells - 1] = FLAGS_OF[packed[cells / 2] & 15];
}

struct Board {
    Rng rng;
    int64_t level;
    int32_t counter;   // steps; starts at 0 ... 5
    int16_t left;      // boxes that are not on a target; 0: solved
    uint8_t player;    // cell
    uint8_t shown;     // cell where the observation has the player: under `pomdp` one feasible step away
    bool done, stale;  // stale: the caller's array does not show this board as it was before the step
    uint8_t flags[MAX_CELLS];
};

struct Options {
    int64_t n_levels;
    int size, n_danger, max_steps, autoreset;
    bool pomdp, planes;
};

struct Out {  // the caller's arrays; rew is one of the two; obs and cost may be absent
    uint8_t *obs;
    float *rew32;
    double *rew64;
    uint8_t *terminated, *truncated, *cost;
    bool in_place;
};

class Boards {
  public:
    Options options;
    Map map;
    int64_t obs_bytes;
    const uint8_t *levels;  // [n_levels, packed_bytes], kept alive by the owner
    std::vector<Board> boards, ended;  // ended: boards as they were at the end that SAME_STEP wiped out

    Boards(int64_t n, const Options &options_, const uint8_t *levels_, const uint8_t *sprites)
        : options(options_), map(options_.size), levels(levels_), boards((size_t)n), ended((size_t)n) {
        obs_bytes = (int64_t)map.cells * (options.planes ? PLANES : 3 * TILE * TILE);
        memset((void *)boards.data(), 0, sizeof(Board) * (size_t)n);
        for (int flags = 0; flags < ALL_FLAGS; flags++) memcpy(sprite[flags], sprites + code_of((uint8_t)flags) * sizeof(sprite[0]), sizeof(sprite[0]));
    }

    // `level` and `counter` below 0: drawn.
    void reset(Board &board, int64_t level, int64_t counter) {
        board.level = level >= 0 ? level : (int64_t)board.rng.below((uint32_t)options.n_levels);
        unpack(levels + board.level * packed_bytes(map.cells), map.cells, board.flags);
        if (options.n_danger) scatter_danger(board);
        board.counter = (int32_t)(counter >= 0 ? counter : board.rng.below(6));
        board.done = false;
        look_up(board);
        show(board);
        board.stale = true;
    }

    // Player and boxes left, from the cells. Returns how many players there are.
    int look_up(Board &board) const {
        int players = 0, player = 0, left = 0;
        for (int i = 0; i < map.cells; i++) {  // without branches: the compiler takes many cells at once
            const int is_player = (board.flags[i] & PLAYER) != 0;
            players += is_player;
            player += is_player * i;
            left += (board.flags[i] & (BOX | TARGET)) == BOX;
        }
        board.player = (uint8_t)player;
        board.left = (int16_t)left;
        return players;
    }

    // Returns the first board whose action does not exist, or -1. A board that begins anew takes no action.
    int64_t bad_action(const int64_t *actions) const {
        for (size_t i = 0; i < boards.size(); i++)
            if ((uint64_t)actions[i] >= ACTIONS && !(options.autoreset == NEXT_STEP && boards[i].done)) return (int64_t)i;
        return -1;
    }

    // Returns how many boards came to an end with this step.
    int64_t step(const int64_t *actions, const Out &out) {
        int64_t n_ended = 0;
        for (size_t i = 0; i < boards.size(); i++) {
            Board &board = boards[i];
            int changed[5], n_changed = 0;
            double rew = 0.0;
            bool terminated = false, truncated = false;
            if (options.autoreset == NEXT_STEP && board.done) {
                reset(board, -1, -1);
            } else {
                const bool was_done = board.done;
                if (!was_done) rew = move(board, (int)actions[i], changed, n_changed);
                truncated = board.counter >= options.max_steps - 1;  // also of a board that was done before: it goes on counting
                if (truncated) board.done = true;
                else board.counter++;
                terminated = board.left == 0;
                changed[n_changed++] = board.shown;
                if (!was_done || options.pomdp) show(board);
                changed[n_changed++] = board.shown;
                n_ended += board.done && !was_done;
            }
            if (out.rew32) out.rew32[i] = (float)rew;
            else out.rew64[i] = rew;
            out.terminated[i] = terminated;
            out.truncated[i] = truncated;
            if (out.cost) out.cost[i] = (board.flags[board.player] & DANGER) != 0;
            if (options.autoreset == SAME_STEP && board.done) {
                ended[i] = board;
                reset(board, -1, -1);
            }
            if (!out.obs) continue;
            uint8_t *obs = out.obs + (int64_t)i * obs_bytes;
            if (out.in_place && !board.stale) draw_cells(board, changed, n_changed, obs);
            else draw(board, obs);
            board.stale = false;
        }
        return n_ended;
    }

    void observe(Board &board, uint8_t *obs, bool in_place) {
        if (!in_place || board.stale) draw(board, obs);
        board.stale = false;
    }

    void draw(Board &board, uint8_t *obs) {
        put_aside(board);
        // Local copies: a byte written to obs might else, for all the compiler knows, change them.
        const int size = map.size, cells = map.cells, width = size * TILE;
        uint8_t flags[MAX_CELLS];
        memcpy(flags, board.flags, sizeof(flags));
        if (options.planes) {
            for (int plane = 0; plane < PLANES; plane++, obs += cells) {
                const uint8_t bit = (uint8_t)(1 << plane);
                for (int i = 0; i < cells; i++) obs[i] = (flags[i] & bit) != 0;
            }
        } else {
            const uint8_t *tiles[MAX_SIZE];
            for (int y = 0; y < size; y++) {
                for (int x = 0; x < size; x++) tiles[x] = &sprite[flags[y * size + x]][0][0][0];
                for (int channel = 0; channel < 3; channel++)
                    for (int row = 0; row < TILE; row++) {
                        uint8_t *line = obs + ((channel * size + y) * TILE + row) * width;
                        for (int x = 0; x < size; x++) memcpy(line + x * TILE, tiles[x] + (channel * TILE + row) * TILE, TILE);
                    }
            }
        }
        put_aside(board);
    }

  private:
    uint8_t sprite[ALL_FLAGS][3][TILE][TILE];

    void draw_cells(Board &board, const int *cells, int n, uint8_t *obs) {
        put_aside(board);
        for (int k = 0; k < n; k++) {
            const int cell = cells[k];
            const uint8_t flags = board.flags[cell];
            if (options.planes) {
                for (int plane = 0; plane < PLANES; plane++) obs[plane * map.cells + cell] = (flags >> plane) & 1;
            } else {
                const int width = map.size * TILE, y = cell / map.size, x = cell % map.size;
                uint8_t *corner = obs + y * TILE * width + x * TILE;
                for (int channel = 0; channel < 3; channel++)
                    for (int row = 0; row < TILE; row++) memcpy(corner + (channel * width + row) * width, sprite[flags][channel][row], TILE);
            }
        }
        put_aside(board);
    }

    // Puts the player where the observation has it; a second call puts it back.
    static void put_aside(Board &board) {
        if (board.shown == board.player) return;
        board.flags[board.player] ^= PLAYER;
        board.flags[board.shown] ^= PLAYER;
    }

    void show(Board &board) {
        board.shown = board.player;
        if (!options.pomdp) return;
        int feasible[ACTIONS], n = 0;
        for (int action = 0; action < ACTIONS; action++) {
            const int to = map.next[action][board.player];
            if (to >= 0 && !(board.flags[to] & BLOCKED)) feasible[n++] = to;
        }
        board.shown = (uint8_t)feasible[board.rng.below((uint32_t)n)];
    }

    double move(Board &board, int action, int *changed, int &n_changed) {
        const double price = -0.01;
        const int to = map.next[action][board.player];
        if (action == 0 || to < 0 || (board.flags[to] & WALL)) return price;
        int gain = 0;
        if (board.flags[to] & BOX) {
            const int beyond = map.next[action][to];
            if (beyond < 0 || (board.flags[beyond] & BLOCKED)) return price;
            board.flags[to] ^= BOX;
            board.flags[beyond] ^= BOX;
            gain = ((board.flags[beyond] & TARGET) != 0) - ((board.flags[to] & TARGET) != 0);
            board.left = (int16_t)(board.left - gain);
            if (board.left == 0) {
                board.done = true;
                gain += 10;
            }
            changed[n_changed++] = beyond;
        }
        board.flags[board.player] ^= PLAYER;
        board.flags[to] ^= PLAYER;
        changed[n_changed++] = board.player;
        changed[n_changed++] = to;
        board.player = (uint8_t)to;
        return price + gain;
    }

    void scatter_danger(Board &board) {
        int empty[MAX_CELLS], n = 0;
        for (int i = 0; i < map.cells; i++)
            if (board.flags[i] == FLOOR) empty[n++] = i;
        for (int k = 0; k < options.n_danger && k < n; k++) {
            const int pick = k + (int)board.rng.below((uint32_t)(n - k));
            board.flags[empty[pick]] = DANGER;
            empty[pick] = empty[k];
        }
    }
};

}  // namespace sokoban

#endif
