#include "src/gnn/pipeline/output.h"

#include <algorithm>

#include "src/base/ceil_div_pod.h"
#include "src/io/alignment.h"

namespace overlace::gnn {
namespace {

constexpr auto kWord = static_cast<int64_t>(sizeof(int64_t));

int64_t aligned(int64_t bytes) { return base::round_up(bytes, kOutputAlignment); }

}  // namespace

ArrayPlaces array_places(const BatchView& batch, bool is_on_device) {
  ArrayPlaces places;
  places.edges = aligned(std::ssize(batch.inputs) * kWord);
  places.classes = places.edges + aligned(2 * std::ssize(batch.indices) * kWord);
  places.end = places.classes + aligned(batch.num_seeds() * kWord);
  places.sources = places.end;
  places.staged = places.sources + (is_on_device ? aligned(std::ssize(batch.inputs) * kWord) : 0);
  return places;
}

OutputRoom output_room(const LargestBatch& largest, int64_t row_bytes, bool is_on_device, bool has_cpu_cache) {
  OutputRoom room;
  room.blocks = aligned(largest.block_bytes);
  room.rows = aligned(largest.rows * row_bytes);
  // Blocks have 4 bytes for each of these: an edge becomes 16, a vertex and a label 8.
  room.arrays = 4 * room.blocks + 3 * kOutputAlignment;
  if (is_on_device) room.arrays += aligned(largest.rows * kWord);
  if (is_on_device && has_cpu_cache && row_bytes < kFarRowBytes) room.arrays += room.rows;
  const auto whole = [](int64_t bytes) { return io::round_up(std::max(bytes, io::kPageBytes), io::kPageBytes); };
  room.host = whole(room.blocks + (is_on_device ? 0 : room.rows) + room.arrays);
  room.device = is_on_device ? whole(room.rows + room.arrays) : 0;
  return room;
}

void write_arrays(const BatchView& batch, std::span<const int32_t> labels, const ArrayPlaces& places,
                  std::byte* arrays) {
  const auto at = [&](int64_t offset) { return reinterpret_cast<int64_t*>(arrays + offset); };
  std::copy(batch.inputs.begin(), batch.inputs.end(), at(places.ids));
  std::copy(labels.begin(), labels.end(), at(places.classes));
  int64_t* const from = at(places.edges);
  int64_t* const to = from + batch.indices.size();
  std::copy(batch.indices.begin(), batch.indices.end(), from);
  for (size_t v = 0; v + 1 < batch.indptr.size(); ++v)
    std::fill(to + batch.indptr[v], to + batch.indptr[v + 1], static_cast<int64_t>(v));
}

}  // namespace overlace::gnn
