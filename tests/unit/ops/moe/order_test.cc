// The order of the items of a layer in one kernel: each place once, and nobody before what it awaits.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "src/ops/moe/cuda/order_pod.h"

namespace overlace::ops::moe {
namespace {

struct Drawn {
  std::vector<int32_t> begin{0};
  ItemOrder order{};
};

Drawn draw_order(unsigned seed) {
  std::mt19937 draw(seed);
  Drawn out;
  const auto experts = static_cast<int32_t>(draw() % 40 + 1);
  for (int32_t e = 0; e < experts; ++e)
    out.begin.push_back(out.begin.back() + static_cast<int32_t>(draw() % 3 == 0 ? 0 : draw() % 7));
  out.order = {nullptr, experts, static_cast<int32_t>(draw() % 9 + 1), static_cast<int32_t>(draw() % 5 + 1),
               static_cast<int32_t>(draw() % 120 + 1)};
  return out;
}

struct Item {
  int32_t expert = -1;
  bool is_down = false;
};

std::vector<Item> items_of(const ItemOrder& o) {
  std::vector<Item> items(static_cast<size_t>(count_items(o)));
  for (int32_t e = 0; e < o.experts; ++e) {
    const int32_t tiles = o.begin[e + 1] - o.begin[e];
    for (const bool is_down : {false, true}) {
      const int32_t first = is_down ? first_down(o, e) : first_up(o, e);
      for (int32_t i = 0; i < tiles * (is_down ? o.down : o.up); ++i) {
        Item& item = items.at(static_cast<size_t>(first + i));
        EXPECT_EQ(item.expert, -1) << "place " << first + i << " is taken twice";
        item = {e, is_down};
      }
    }
  }
  return items;
}

TEST(MoeItemOrder, EachPlaceIsTakenOnceAndAnExpertsDownItemsStandBehindItsUpItems) {
  for (unsigned seed = 0; seed < 500; ++seed) {
    Drawn drawn = draw_order(seed);
    drawn.order.begin = drawn.begin.data();
    const ItemOrder& o = drawn.order;
    const std::vector<Item> items = items_of(o);
    std::vector<int32_t> last_up(static_cast<size_t>(o.experts), -1);
    int32_t ups = 0, up_expert = 0, down_expert = 0;
    std::vector<int32_t> ups_until(static_cast<size_t>(o.experts), 0);  // up items, its own last one among them
    for (const Item& item : items) {
      ASSERT_NE(item.expert, -1) << "seed " << seed;
      const auto e = static_cast<size_t>(item.expert);
      if (!item.is_down) {
        ASSERT_GE(item.expert, up_expert) << "seed " << seed;
        up_expert = item.expert;
        ups_until[e] = ++ups;
        continue;
      }
      ASSERT_GE(item.expert, down_expert) << "seed " << seed;
      down_expert = item.expert;
      const int32_t own = (o.begin[item.expert + 1] - o.begin[item.expert]) * o.up;
      ASSERT_EQ(ups_until[e], o.begin[item.expert] * o.up + own) << "seed " << seed << ": before all up items";
      const bool all_up = ups == o.begin[o.experts] * o.up;
      ASSERT_TRUE(all_up || ups - ups_until[e] >= o.lag) << "seed " << seed << ": expert " << item.expert;
    }
  }
}

/// No further behind than it must be: an expert's down items stand before the up items of an expert before whom as many
/// as `lag` stand.
TEST(MoeItemOrder, DownItemsStandAsSoonAsTheyMay) {
  for (unsigned seed = 0; seed < 500; ++seed) {
    Drawn drawn = draw_order(seed);
    drawn.order.begin = drawn.begin.data();
    const ItemOrder& o = drawn.order;
    for (int32_t e = 0; e < o.experts; ++e)
      for (int32_t next = e + 1; next < o.experts; ++next) {
        if (o.begin[e] == o.begin[e + 1] || o.begin[next] == o.begin[next + 1]) continue;  // no items
        const bool may = (o.begin[next] - o.begin[e + 1]) * o.up >= o.lag;
        ASSERT_EQ(first_down(o, e) < first_up(o, next), may) << "seed " << seed << ": " << e << ", " << next;
      }
  }
}

}  // namespace
}  // namespace overlace::ops::moe
