// Levels: read from Boxoban's text format, made by reverse play, and solved by A*.

#ifndef PARL_LIKE_SOKOBAN_LEVELS_H
#define PARL_LIKE_SOKOBAN_LEVELS_H

#include <algorithm>
#include <string>
#include <unordered_map>
#include <vector>

#include "boards.h"

namespace sokoban {

// ---- reading

struct Parsed {
    int size;
    int64_t n_levels, line, level;   // where the error is: line from 1, level from 0 (-1: before the first)
    std::string error;               // empty: none
    std::vector<uint8_t> packed;
};

inline uint8_t flags_of_char(char c) {
    static const char CHARS[] = "# $!@%.^&*";  // in the order of the codes; any other character is a wall
    const char *at = c ? strchr(CHARS, c) : nullptr;
    return at ? FLAGS_OF[at - CHARS] : (uint8_t)WALL;
}

inline std::string count_text(int64_t n, const char *noun) { return std::to_string(n) + " " + noun + (n == 1 ? "" : "s"); }

// What is wrong with a level; `n_boxes` 0: any number.
inline std::string fault_of(const uint8_t *flags, int cells, int n_boxes) {
    int players = 0, boxes = 0, targets = 0, left = 0;
    for (int i = 0; i < cells; i++) {
        players += (flags[i] & PLAYER) != 0;
        boxes += (flags[i] & BOX) != 0;
        targets += (flags[i] & TARGET) != 0;
        left += (flags[i] & (BOX | TARGET)) == BOX;
    }
    if (players != 1) return count_text(players, "player") + "; expected exactly one ('@', '%' or '*')";
    if (n_boxes && boxes != n_boxes) return std::to_string(boxes) + (boxes == 1 ? " box" : " boxes") + "; expected " + std::to_string(n_boxes);
    if (boxes == 0) return "no box";
    if (boxes != targets) return std::to_string(boxes) + (boxes == 1 ? " box" : " boxes") + " but " + count_text(targets, "target");
    if (left == 0) return "every box is on a target already";
    return "";
}

// Reads a whole file. `size` 0: that of its first row.
inline Parsed parse(const char *text, int64_t length, int size, int n_boxes) {
    Parsed out;
    out.size = size, out.n_levels = 0, out.line = 0, out.level = -1;
    uint8_t flags[MAX_CELLS];
    int row = -1;  // of the level that is being read; -1: between levels
    const char *end = text + length;
    for (const char *at = text; at < end;) {
        const char *stop = (const char *)memchr(at, '\n', (size_t)(end - at));
        const char *next = stop ? stop + 1 : end;
        if (!stop) stop = end;
        if (stop > at && stop[-1] == '\r') stop--;
        const int64_t width = stop - at;
        out.line++;
        if (row < 0) {
            if (width && *at == ';') {
                row = 0;
                out.level++;
            } else if (width) {
                out.error = "expected a line that begins with ';' before each level";
                return out;
            }
        } else if (width && *at == ';') {
            out.error = "the level before this line has " + count_text(row, "row") + "; expected " + (out.size ? std::to_string(out.size) : "some");
            return out;
        } else {
            if (out.size == 0) out.size = (int)std::min<int64_t>(width, MAX_SIZE + 1);
            if (out.size < MIN_SIZE || out.size > MAX_SIZE) {
                out.error = "the row has " + count_text(width, "character") + "; boards have 3 to 10";
                return out;
            }
            if (width != out.size) {
                out.error = "row " + std::to_string(row) + " has " + count_text(width, "character") + "; expected " + std::to_string(out.size);
                return out;
            }
            for (int x = 0; x < out.size; x++) flags[row * out.size + x] = flags_of_char(at[x]);
            if (++row == out.size) {
                const int cells = out.size * out.size;
                out.error = fault_of(flags, cells, n_boxes);
                if (!out.error.empty()) return out;
                out.packed.resize(out.packed.size() + (size_t)packed_bytes(cells));
                pack(flags, cells, out.packed.data() + out.packed.size() - packed_bytes(cells));
                out.n_levels++;
                row = -1;
            }
        }
        at = next;
    }
    if (row >= 0) out.error = "the file ends after " + count_text(row, "row") + " of the level";
    else if (out.n_levels == 0) out.error = "no level in the file";
    return out;
}

// ---- distances

enum { FAR = 10000, MAX_SOLVED_BOXES = 7 };

// Cells that the player reaches without pushing.
struct Reach {
    bool yes[MAX_CELLS];
    int queue[MAX_CELLS], n;

    void flood(const Map &map, const uint8_t *flags, int from) {
        memset(yes, 0, sizeof(yes));
        yes[from] = true;
        queue[0] = from;
        n = 1;
        for (int k = 0; k < n; k++)
            for (int action = 1; action < ACTIONS; action++) {
                const int to = map.next[action][queue[k]];
                if (to < 0 || yes[to] || (flags[to] & BLOCKED)) continue;
                yes[to] = true;
                queue[n++] = to;
            }
    }
};

// Least pushes that bring a lone box from each cell to `target`, the player being wherever it likes: FAR where it cannot be done.
inline void push_distances(const Map &map, const uint8_t *flags, int target, int16_t *distance) {
    int queue[MAX_CELLS], n = 1;
    for (int i = 0; i < map.cells; i++) distance[i] = FAR;
    distance[target] = 0;
    queue[0] = target;
    for (int k = 0; k < n; k++)
        for (int action = 1; action < ACTIONS; action++) {  // pull the box by `action`: the player goes before it
            const int box = map.next[action][queue[k]], player = box < 0 ? -1 : map.next[action][box];
            if (player < 0 || (flags[box] & WALL) || (flags[player] & WALL) || distance[box] != FAR) continue;
            distance[box] = (int16_t)(distance[queue[k]] + 1);
            queue[n++] = box;
        }
}

// Least total distance when every box gets a target of its own: a lower bound of the pushes to come. FAR or more: no way.
struct Matching {
    int n;
    int16_t distance[MAX_SOLVED_BOXES][MAX_CELLS];  // [target][cell]

    void prepare(const Map &map, const uint8_t *flags) {
        n = 0;
        for (int i = 0; i < map.cells && n < MAX_SOLVED_BOXES; i++)
            if (flags[i] & TARGET) push_distances(map, flags, i, distance[n++]);
    }

    int bound(const uint8_t *boxes) const {
        int best[1 << MAX_SOLVED_BOXES];  // [set of targets that the first boxes have taken]
        best[0] = 0;
        for (int set = 1; set < 1 << n; set++) {
            int box = -1;
            for (int k = 0; k < n; k++) box += (set >> k) & 1;
            best[set] = 2 * FAR;
            for (int k = 0; k < n; k++)
                if ((set >> k) & 1) best[set] = std::min(best[set], best[set ^ (1 << k)] + distance[k][boxes[box]]);
        }
        return std::min(best[(1 << n) - 1], (int)FAR);
    }
};

// ---- solving

struct Solution {
    int status;          // 1 solved, 0 cannot be solved, -1 the limit was reached
    int64_t expanded;    // positions looked at
    int pushes;          // of the solution: as few as can be
    std::string actions; // bytes 1 ... 4
};

// A* over pushes. A position is the boxes and the region the player can walk in. Ties are taken newest first, so that the
// search, and what is made with its help, is the same everywhere.
class Solver {
  public:
    Solver(const uint8_t *flags_, int size) : map(size), n_boxes(0) {
        for (int i = 0; i < map.cells; i++) {
            if (flags_[i] & PLAYER) player = i;
            if ((flags_[i] & BOX) && n_boxes < MAX_SOLVED_BOXES) start[n_boxes++] = (uint8_t)i;
            bare[i] = (uint8_t)(flags_[i] & (WALL | TARGET));
        }
        matching.prepare(map, bare);
    }

    Solution run(int64_t limit) {
        Solution out = {0, 0, 0, ""};
        std::vector<Node> nodes;
        std::vector<std::vector<int>> open;
        std::unordered_map<uint64_t, int> best;  // position -> the shortest way there
        uint8_t flags[MAX_CELLS], boxes[MAX_SOLVED_BOXES];
        Reach reach;
        nodes.push_back({0, -1, 0, 0, 0});
        memcpy(boxes, start, sizeof(boxes));
        if (!enter(nodes, open, best, boxes, player, nodes[0], true)) return out;
        for (size_t f = 0; f < open.size(); f++)
            while (!open[f].empty()) {
                const int at = open[f].back();
                open[f].pop_back();
                const Node node = nodes[(size_t)at];
                if (best[node.key] != at) continue;
                unfold(node.key, boxes, flags);
                if (solved(boxes)) {
                    out.status = 1;
                    out.pushes = node.pushes;
                    walk(nodes, at, out.actions);
                    return out;
                }
                if (out.expanded >= limit) {
                    out.status = -1;
                    return out;
                }
                out.expanded++;
                reach.flood(map, flags, (int)(node.key & 255));
                for (int k = 0; k < n_boxes; k++)
                    for (int action = 1; action < ACTIONS; action++) {
                        const int from = boxes[k], to = map.next[action][from], behind = map.next[opposite(action)][from];
                        if (to < 0 || behind < 0 || !reach.yes[behind] || (flags[to] & BLOCKED)) continue;
                        uint8_t after[MAX_SOLVED_BOXES];
                        int at_k = 0;  // boxes stay in order, so that a position has one key
                        for (int j = 0; j < n_boxes; j++)
                            if (j != k && boxes[j] < to) after[at_k++] = boxes[j];
                        after[at_k++] = (uint8_t)to;
                        for (int j = 0; j < n_boxes; j++)
                            if (j != k && boxes[j] > to) after[at_k++] = boxes[j];
                        const Node child = {0, at, node.pushes + 1, (uint8_t)from, (uint8_t)action};
                        enter(nodes, open, best, after, from, child, false);  // never below f: a push lowers the bound by 1 at most
                    }
            }
        return out;
    }

  private:
    struct Node {
        uint64_t key;
        int parent, pushes;
        uint8_t from, action;  // the push that led here
    };

    Map map;
    Matching matching;
    int n_boxes, player;
    uint8_t start[MAX_SOLVED_BOXES], bare[MAX_CELLS];

    static int opposite(int action) { return action == 1 ? 2 : action == 2 ? 1 : action == 3 ? 4 : 3; }

    bool solved(const uint8_t *boxes) const {
        for (int k = 0; k < n_boxes; k++)
            if (!(bare[boxes[k]] & TARGET)) return false;
        return true;
    }

    void unfold(uint64_t key, uint8_t *boxes, uint8_t *flags) const {
        memcpy(flags, bare, MAX_CELLS);
        for (int k = 0; k < n_boxes; k++) {
            boxes[k] = (uint8_t)(key >> (8 * (k + 1)));
            flags[boxes[k]] |= BOX;
        }
    }

    bool enter(std::vector<Node> &nodes, std::vector<std::vector<int>> &open, std::unordered_map<uint64_t, int> &best,
               const uint8_t *boxes, int player_at, Node node, bool first) const {
        const int bound = matching.bound(boxes);
        if (bound >= FAR) return false;
        uint8_t flags[MAX_CELLS];
        memcpy(flags, bare, MAX_CELLS);
        node.key = 0;
        for (int k = 0; k < n_boxes; k++) {
            flags[boxes[k]] |= BOX;
            node.key |= (uint64_t)boxes[k] << (8 * (k + 1));
        }
        Reach reach;
        reach.flood(map, flags, player_at);
        node.key |= (uint64_t)*std::min_element(reach.queue, reach.queue + reach.n);
        const auto known = best.find(node.key);
        if (known != best.end() && nodes[(size_t)known->second].pushes <= node.pushes) return false;
        if (first) nodes[0] = node;
        else nodes.push_back(node);
        best[node.key] = (int)nodes.size() - 1;
        const size_t f = (size_t)(node.pushes + bound);
        if (open.size() <= f) open.resize(f + 1);
        open[f].push_back((int)nodes.size() - 1);
        return true;
    }

    // The pushes on the way to `at`, with the player's steps between them.
    void walk(const std::vector<Node> &nodes, int at, std::string &actions) const {
        std::vector<Node> pushes;
        for (; nodes[(size_t)at].parent >= 0; at = nodes[(size_t)at].parent) pushes.push_back(nodes[(size_t)at]);
        uint8_t flags[MAX_CELLS];
        memcpy(flags, bare, MAX_CELLS);
        for (int k = 0; k < n_boxes; k++) flags[start[k]] |= BOX;
        int here = player;
        for (auto push = pushes.rbegin(); push != pushes.rend(); ++push) {
            const int behind = map.next[opposite(push->action)][push->from];
            int by[MAX_CELLS], queue[MAX_CELLS], n = 1;  // from the goal back to here: by[cell] is the step to take there
            memset(by, 0, sizeof(by));
            by[behind] = -1;
            queue[0] = behind;
            for (int k = 0; k < n; k++)
                for (int action = 1; action < ACTIONS; action++) {
                    const int to = map.next[action][queue[k]];
                    if (to < 0 || by[to] || (flags[to] & BLOCKED)) continue;
                    by[to] = opposite(action);
                    queue[n++] = to;
                }
            while (here != behind) {
                actions.push_back((char)by[here]);
                here = map.next[by[here]][here];
            }
            actions.push_back((char)push->action);
            flags[push->from] ^= BOX;
            flags[map.next[push->action][push->from]] ^= BOX;
            here = push->from;
        }
    }
};

// ---- making

// Makes levels by reverse play: boxes start on their targets and are pulled away. A pull undone is a push, so every level is solvable.
class Maker {
  public:
    Maker(int size, int n_boxes_, int min_pushes_) : map(size), n_boxes(n_boxes_), min_pushes(min_pushes_) {}

    // Level `index` of stream `seed`: depends on nothing but these, so any part of a set can be made alone. False: too many tries.
    bool make(uint64_t seed, uint64_t index, uint8_t *level) {
        rng.seed(mix(seed) ^ (index * 0xD1342543DE82EF95ull));
        for (int tries = 0; tries < 20000; tries++) {
            carve();
            if (place() && pull(level)) return true;
        }
        return false;
    }

  private:
    Map map;
    Rng rng;
    Reach reach;
    Matching matching;
    int n_boxes, min_pushes, player;
    uint8_t flags[MAX_CELLS], boxes[MAX_SOLVED_BOXES];

    // A walker digs a connected cave into solid rock, at times two cells wide, for a box in a narrow corridor is stuck for good.
    void carve() {
        const int interior = map.size - 2, area = interior * interior;
        const int least = std::min(area, std::max(area * 7 / 20, 3 * n_boxes + 2)), most = std::max(least, area * 7 / 10);
        const int wanted = least + (int)rng.below((uint32_t)(most - least + 1));
        memset(flags, WALL, sizeof(flags));
        int at = (1 + (int)rng.below((uint32_t)interior)) * map.size + 1 + (int)rng.below((uint32_t)interior), dug = 0, action = 1;
        while (dug < wanted) {
            dug += dig(at);
            if (dug < wanted && rng.below(2)) {
                const int side = map.next[1 + (int)rng.below(4)][at];
                if (inner(side)) dug += dig(side);
            }
            if (rng.below(5) < 2) action = 1 + (int)rng.below(4);
            const int to = map.next[action][at];
            if (inner(to)) at = to;
            else action = 1 + (int)rng.below(4);
        }
    }

    int dig(int cell) {
        const int fresh = flags[cell] == WALL;
        flags[cell] = FLOOR;
        return fresh;
    }

    bool inner(int cell) const {
        const int y = cell / map.size, x = cell % map.size;
        return y > 0 && y < map.size - 1 && x > 0 && x < map.size - 1;
    }

    // Boxes on targets, where a pull could begin; the player anywhere else.
    bool place() {
        int fit[MAX_CELLS], n = 0, floor[MAX_CELLS], n_floor = 0;
        for (int i = 0; i < map.cells; i++) {
            if (flags[i] & WALL) continue;
            floor[n_floor++] = i;
            for (int action = 1; action < ACTIONS; action++) {
                const int one = map.next[action][i], two = map.next[action][one];
                if ((flags[one] & WALL) || two < 0 || (flags[two] & WALL)) continue;
                fit[n++] = i;
                break;
            }
        }
        if (n < n_boxes || n_floor <= n_boxes) return false;
        for (int k = 0; k < n_boxes; k++) {
            const int pick = k + (int)rng.below((uint32_t)(n - k));
            std::swap(fit[k], fit[pick]);
            boxes[k] = (uint8_t)fit[k];
            flags[fit[k]] |= BOX | TARGET;
        }
        do player = floor[rng.below((uint32_t)n_floor)];
        while (flags[player] & BOX);
        matching.prepare(map, flags);
        return true;
    }

    // Pulls at random, a box on in its direction more often than not, and keeps the position that is farthest from solved.
    bool pull(uint8_t *level) {
        uint8_t best_boxes[MAX_SOLVED_BOXES];
        int best = min_pushes - 1, best_player = -1, last_box = -1, last_action = 0;
        for (int pulls = 20 * n_boxes + 2 * map.size; pulls > 0; pulls--) {
            struct { int box, action; } ways[4 * MAX_SOLVED_BOXES], way = {-1, 0};
            int n = 0;
            reach.flood(map, flags, player);
            for (int k = 0; k < n_boxes; k++)
                for (int action = 1; action < ACTIONS; action++) {
                    const int one = map.next[action][boxes[k]], two = one < 0 ? -1 : map.next[action][one];
                    if (two < 0 || !reach.yes[one] || (flags[two] & BLOCKED)) continue;
                    ways[n].box = k, ways[n].action = action;
                    if (k == last_box && action == last_action) way = ways[n];
                    n++;
                }
            if (n == 0) break;
            if (way.box < 0 || rng.below(5) < 2) way = ways[rng.below((uint32_t)n)];
            last_box = way.box, last_action = way.action;
            const int from = boxes[way.box], to = map.next[way.action][from];
            flags[from] ^= BOX;
            flags[to] ^= BOX;
            boxes[way.box] = (uint8_t)to;
            player = map.next[way.action][to];
            bool away = true;
            for (int k = 0; k < n_boxes; k++) away &= !(flags[boxes[k]] & TARGET);
            if (!away) continue;
            const int bound = matching.bound(boxes);
            if (bound <= best) continue;
            best = bound;
            best_player = player;
            memcpy(best_boxes, boxes, sizeof(boxes));
        }
        if (best_player < 0) return false;
        for (int k = 0; k < n_boxes; k++) flags[boxes[k]] ^= BOX;
        for (int k = 0; k < n_boxes; k++) flags[best_boxes[k]] |= BOX;
        reach.flood(map, flags, best_player);
        int n = 0, choice[MAX_CELLS];
        for (int k = 0; k < reach.n; k++)
            if (!(flags[reach.queue[k]] & TARGET)) choice[n++] = reach.queue[k];
        if (n == 0) return false;
        flags[choice[rng.below((uint32_t)n)]] |= PLAYER;
        memcpy(level, flags, (size_t)map.cells);
        return true;
    }
};

}  // namespace sokoban

#endif
