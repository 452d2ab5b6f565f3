#include "src/ops/moe/cuda/layout.h"

#include <algorithm>

#include "src/base/ceil_div_pod.h"
#include "src/base/status.h"

namespace overlace::ops::moe {
namespace {

constexpr size_t kAlign = 256;

/// Offsets of parts of one block, each aligned.
class Parts {
 public:
  uint64_t add(int64_t bytes) {
    const auto at = static_cast<uint64_t>(end_);
    end_ += base::round_up(std::max<int64_t>(bytes, 1), static_cast<int64_t>(kAlign));
    return at;
  }
  size_t bytes() const { return static_cast<size_t>(end_); }

 private:
  int64_t end_ = 0;
};

template <class Fits>
const fused::Instance& find(fused::Kernel kernel, Fits fits) {
  for (const fused::Instance& one : fused::instances(kernel))
    if (fits(one.spec)) return one;
  OVERLACE_ASSERT(false);  // both dtypes have all
  return fused::instances(kernel)[0];
}

}  // namespace

const fused::Instance& instance_of(DType dtype, const ProductKind& kind) {
  return find(fused::Kernel::grouped, [&](const fused::ConfigSpec& s) {
    return s.dtype == dtype && s.b_major == kind.b_major && s.halves == kind.halves &&
           s.stores_fp32 == kind.stores_fp32;
  });
}
const fused::Instance& wgrad_instance(DType dtype) {
  return find(fused::Kernel::wgrad, [&](const fused::ConfigSpec& s) { return s.dtype == dtype; });
}

const fused::Instance& layer_instance(DType dtype) {
  return find(fused::Kernel::moe, [&](const fused::ConfigSpec& s) { return s.dtype == dtype; });
}

WeightExtents extents_of(const MoeSpec& spec, int weight) {
  return weight == 0 ? WeightExtents{2 * spec.inter, spec.hidden} : WeightExtents{spec.hidden, spec.inter};
}

Layout layout_of(const MoeSpec& spec, const Placement& placement, int rank) {
  const int64_t ranks = placement.ranks(), local = placement.local(rank), choices = spec.max_tokens * spec.top_k;
  const int64_t row_bytes = spec.hidden * 2;
  const int planes = spec.gradients ? kMostPlanes : 1;
  Layout out{};
  Parts heap;
  out.tokens = heap.add(sizeof(int64_t));
  out.counts = heap.add(spec.num_experts * 4);
  out.entries = heap.add(choices * static_cast<int64_t>(sizeof(Entry)));
  for (int plane = 0; plane < planes; ++plane) out.rows[plane] = heap.add(spec.max_tokens * row_bytes);
  out.sums = heap.add(ranks * spec.max_tokens * row_bytes);
  if (spec.gradients) out.dweights = heap.add(choices * 4);
  out.heap_bytes = heap.bytes();
  out.pool_rows = base::round_up(std::max<int64_t>(ranks * choices + (kPoolTile - 1) * local, 1), int64_t{kPoolTile});
  Parts device;
  out.hist = device.add(base::ceil_div(choices, int64_t{kEntriesPerBlock}) * spec.num_experts * 4);
  out.slots = device.add(choices * 4);
  out.first = device.add(ranks * local * 8);
  out.load = device.add(local * 4);
  out.groups = device.add(local * static_cast<int64_t>(sizeof(fused::RowGroup)));
  const int64_t extents[] = {spec.inter, spec.hidden, spec.gradients ? 2 * spec.inter : 0};
  for (int product = 0; product < kProducts; ++product) {
    // A list serves all products with as many columns.
    const fused::ConfigSpec& s = instance_of(spec.dtype, product == kInter ? kUp : kDown).spec;
    out.columns[product] =
        static_cast<int32_t>(base::ceil_div(extents[product], int64_t{s.tile_n} * s.cluster_n / s.halves));
    out.items[product] = device.add((out.pool_rows / kPoolTile * out.columns[product] + 1) * 16);
  }
  out.num_items = device.add(kProducts * 4);
  out.row_weights = device.add(out.pool_rows * 4);
  for (int plane = 0; plane < planes; ++plane) out.pools[plane] = device.add(out.pool_rows * row_bytes);
  out.hidden = device.add(out.pool_rows * spec.inter * 2);
  if (spec.gradients) {
    out.before = device.add(out.pool_rows * 2 * spec.inter * 4);
    out.q = device.add(out.pool_rows * spec.inter * 4);
    out.dbefore = device.add(out.pool_rows * 2 * spec.inter * 2);
    out.dots = device.add(out.pool_rows * 4);
    const fused::ConfigSpec& s = wgrad_instance(spec.dtype).spec;
    for (int weight = 0; weight < kWgrads; ++weight) {
      const WeightExtents e = extents_of(spec, weight);
      const int64_t tiles = base::ceil_div(e.rows, int64_t{s.tile_m}) * base::ceil_div(e.columns, int64_t{s.tile_n});
      out.wgrad_items[weight] = device.add((tiles * local + 1) * 16);
    }
  }
  const int64_t rows = ranks * spec.max_tokens, tiles = out.pool_rows / kPoolTile;
  const auto place = static_cast<int64_t>(sizeof(RowPlace));
  out.choices = device.add(ranks * choices * static_cast<int64_t>(sizeof(Entry)));
  out.incoming = device.add(rows * place);
  out.outgoing = device.add(rows * place);
  out.next_in = device.add(local * 4);
  out.next_out = device.add(local * 4);
  out.num_rows = device.add(4);
  const fused::ConfigSpec& s = layer_instance(spec.dtype).spec;
  const int64_t wide = int64_t{s.tile_n} * s.cluster_n;
  out.flow_items =
      device.add((tiles * (base::ceil_div(spec.inter, wide / s.halves) + base::ceil_div(spec.hidden, wide)) + 1) * 16);
  out.own_sums = device.add(ranks == 1 ? 0 : spec.max_tokens * spec.hidden * 4);
  out.control = device.add(sizeof(Control));
  out.first_rows = device.add(local * 4);
  out.last_rows = device.add(local * 4);
  out.arrived = device.add(local * 4);
  out.ended = device.add(local * 4);
  out.hidden_done = device.add(tiles * 4);
  out.drawn_in = device.add(4);
  out.drawn_out = device.add(4);
  out.zeroed_bytes = device.bytes() - out.control;
  out.device_bytes = device.bytes();
  return out;
}

}  // namespace overlace::ops::moe
