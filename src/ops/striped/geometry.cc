#include "src/ops/striped/geometry.h"

#include <algorithm>
#include <numeric>

#include "src/base/ceil_div_pod.h"

namespace overlace::ops::striped {
namespace {

constexpr int64_t kMostBlocks = 2048, kMostElements = int64_t{1} << 40;

base::Status check_extents(const StripedSpec& spec) {
  const auto at_least = [](const char* name, int64_t got, int64_t least) {
    return got >= least ? base::Status() : base::invalid_argument("{} is {}, wanted at least {}", name, got, least);
  };
  OVERLACE_TRY(at_least("blocks", spec.blocks, 1));
  OVERLACE_TRY(at_least("rows", spec.rows, 1));
  OVERLACE_TRY(at_least("cols", spec.cols, 1));
  if (spec.blocks > kMostBlocks)
    return base::invalid_argument("blocks is {}, wanted at most {}", spec.blocks, kMostBlocks);
  if (spec.rows > kMostElements / spec.cols / spec.blocks)
    return base::invalid_argument("{} blocks of {} rows of {} elements, wanted at most {} elements", spec.blocks,
                                  spec.rows, spec.cols, kMostElements);
  return {};
}

}  // namespace

StripedSpec with_defaults(const StripedSpec& given, int ranks) {
  StripedSpec spec = given;
  if (spec.blocks == 0) spec.blocks = given.owners.empty() ? ranks : static_cast<int64_t>(given.owners.size());
  if (spec.owners.empty() && spec.blocks > 0 && spec.blocks <= kMostBlocks && spec.blocks % ranks == 0)
    for (int64_t b = 0; b < spec.blocks; ++b) spec.owners.push_back(static_cast<int>(b / (spec.blocks / ranks)));
  if (spec.used.empty() && spec.blocks > 0 && spec.blocks <= kMostBlocks)
    spec.used.assign(static_cast<size_t>(spec.blocks), spec.rows);
  return spec;
}

base::Status check_spec(const StripedSpec& spec, int ranks) {
  OVERLACE_TRY(check_extents(spec));
  if (spec.owners.empty())
    return base::invalid_argument("blocks is {}, wanted a multiple of {} ranks, or owners", spec.blocks, ranks);
  const auto blocks = static_cast<size_t>(spec.blocks);
  if (spec.owners.size() != blocks)
    return base::invalid_argument("owners has {} entries, wanted {}: one for each block", spec.owners.size(), blocks);
  if (spec.used.size() != blocks)
    return base::invalid_argument("used has {} entries, wanted {}: one for each block", spec.used.size(), blocks);
  for (size_t b = 0; b < blocks; ++b) {
    if (spec.owners[b] < 0 || spec.owners[b] >= ranks)
      return base::invalid_argument("owners[{}] is {}, wanted 0 to {}", b, spec.owners[b], ranks - 1);
    if (spec.used[b] < 0 || spec.used[b] > spec.rows)
      return base::invalid_argument("used[{}] is {}, wanted 0 to {} rows", b, spec.used[b], spec.rows);
  }
  return {};
}

base::Result<Geometry> place_blocks(const StripedSpec& spec, uint64_t granule) {
  const auto element = static_cast<uint64_t>(dtype_bytes(spec.dtype)), rows = static_cast<uint64_t>(spec.rows);
  const auto cols = static_cast<uint64_t>(spec.cols);
  const uint64_t net = rows * cols * element;
  Geometry out;
  if (spec.is_batched) {
    out.pitch = spec.cols;
    out.block_bytes = base::round_up(net, granule);
  } else {
    const uint64_t step = granule / std::gcd(rows * element, granule);
    const uint64_t pitch = base::round_up(cols, step);
    out.pitch = static_cast<int64_t>(pitch);
    out.block_bytes = rows * pitch * element;
    if (out.block_bytes > granule && out.block_bytes > 2 * net)
      return base::error(
          Errc::not_supported,
          "blocks of {} rows of {} end at edges of pages of {} bytes where rows are a multiple of {} "
          "elements apart: {} for {} columns, {} bytes for {}; wanted at most twice as many, or a batch, "
          "whose blocks have pages of their own",
          spec.rows, dtype_name(spec.dtype), granule, step, pitch, cols, out.block_bytes, net);
  }
  for (const int owner : spec.owners) {
    if (out.parts.empty() || out.parts.back().rank != owner) out.parts.push_back({owner, 0});
    out.blocks.push_back({static_cast<int>(out.parts.size()) - 1, out.parts.back().bytes});
    out.parts.back().bytes += out.block_bytes;
  }
  return out;
}

std::vector<Run> runs_of(const StripedSpec& spec, const Geometry& geometry, int owner) {
  const uint64_t row_bytes = static_cast<uint64_t>(geometry.pitch) * dtype_bytes(spec.dtype);
  std::vector<Run> runs;
  for (size_t b = 0; b < geometry.blocks.size(); ++b) {
    if (spec.owners[b] != owner || spec.used[b] == 0) continue;
    const Block& block = geometry.blocks[b];
    const bool follows = !runs.empty() && runs.back().part == block.part &&
                         runs.back().offset + static_cast<uint64_t>(runs.back().rows) * row_bytes == block.offset;
    if (!follows) runs.push_back({block.part, block.offset, 0});
    runs.back().rows += spec.used[b];
  }
  return runs;
}

std::string words_of(const StripedSpec& spec) {
  std::string owners, used;
  for (const int owner : spec.owners) owners += base::format(" {}", owner);
  for (const int64_t rows : spec.used) used += base::format(" {}", rows);
  return base::format("{} {} of {} blocks of {} rows of {}, owners{}, used rows{}", dtype_name(spec.dtype),
                      spec.is_batched ? "batch" : "matrix", spec.blocks, spec.rows, spec.cols, owners, used);
}

}  // namespace overlace::ops::striped
