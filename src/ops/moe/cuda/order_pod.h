// The order of the items of a layer in one kernel: one pure function for the device and for tests.
#pragma once

#include <cstdint>

namespace overlace::ops::moe {

/// Items of up and down products of a rank's experts, in one list from which clusters draw in order. All of an expert's
/// up items stand before its down items, which follow as soon as `lag` up items of later experts stand between them, or
/// none is left: so who draws a down item hardly waits, and finds the hidden layer in the L2. An item awaits rows, or
/// earlier items alone.
struct ItemOrder {
  const int32_t* begin;  // (experts + 1): tiles of rows before those of an expert
  int32_t experts;
  int32_t up, down;  // columns of clusters' tiles
  int32_t lag;       // at least 1
};

/// Up items between the end of an expert and the begin of expert `next`.
constexpr bool is_behind(const ItemOrder& o, int32_t expert, int32_t next) {
  return next > expert && int64_t{o.begin[next] - o.begin[expert + 1]} * o.up >= o.lag;
}

/// Experts whose down items stand before the up items of `expert`.
constexpr int32_t downs_before(const ItemOrder& o, int32_t expert) {
  int32_t least = 0, most = expert;  // the first that does not
  while (least < most) {
    const int32_t middle = (least + most) / 2;
    if (is_behind(o, middle, expert)) {
      least = middle + 1;
    } else {
      most = middle;
    }
  }
  return least;
}
/// Experts whose up items stand before the down items of `expert`.
constexpr int32_t ups_before(const ItemOrder& o, int32_t expert) {
  int32_t least = expert + 1, most = o.experts;  // the first that does not
  while (least < most) {
    const int32_t middle = (least + most) / 2;
    if (is_behind(o, expert, middle)) {
      most = middle;
    } else {
      least = middle + 1;
    }
  }
  return least;
}

/// The place of an expert's first item, up or down.
constexpr int32_t first_up(const ItemOrder& o, int32_t expert) {
  return o.begin[expert] * o.up + o.begin[downs_before(o, expert)] * o.down;
}
constexpr int32_t first_down(const ItemOrder& o, int32_t expert) {
  return o.begin[ups_before(o, expert)] * o.up + o.begin[expert] * o.down;
}
constexpr int32_t count_items(const ItemOrder& o) { return o.begin[o.experts] * (o.up + o.down); }

}  // namespace overlace::ops::moe
