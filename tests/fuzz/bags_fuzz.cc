// Bags of embeddings as CSR: any offsets, indices, types, modes and bounds. Bags that are none are refused with bounds
// `error`, and pooled as empty ones whatever the bounds; the rest is what a plain loop over entries gives.
// Sources: src/spec/families/pool src/spec/families/placement src/spec/families/bad_bag
#include <algorithm>
#include <cstring>
#include <limits>
#include <optional>

#include "src/base/half.h"
#include "src/spec/families/placement.h"
#include "src/spec/families/pool.h"
#include "tests/fuzz/fuzz.h"

namespace overlace::fuzz {
namespace {

constexpr const char* kModes[] = {"sum", "mean", "max"};
constexpr const char* kBounds[] = {"error", "ignore", "clamp", "zero_row", "none"};
constexpr DType kTypes[] = {DType::fp64, DType::fp32, DType::fp16, DType::bf16};
constexpr int64_t kColumns = 6, kMostBatch = 8;
/// Two features share a table, one takes columns of another, which has padding.
constexpr const char* kPlacement =
    R"({"tables":[{"rows":5,"dim":2},{"rows":3,"dim":4,"padding":1}],"features":[{"table":0,"rank":0,"column":2},)"
    R"({"table":1,"rank":0,"first":1,"width":2,"column":0},{"table":0,"rank":0,"column":4}]})";

/// The input, byte by byte; zeros behind its end.
class Bytes {
 public:
  explicit Bytes(std::string_view bytes) : bytes_(bytes) {}
  size_t left() const { return bytes_.size(); }
  int64_t below(int64_t most) { return next() % most; }
  /// A small number, or one of the edges.
  int64_t number() {
    constexpr int64_t kEdge = int64_t{1} << 31;
    constexpr int64_t kEdges[] = {kEdge - 1,
                                  kEdge,
                                  kEdge + 1,
                                  -kEdge,
                                  -kEdge - 1,
                                  2 * kEdge - 1,
                                  2 * kEdge,
                                  std::numeric_limits<int64_t>::max(),
                                  std::numeric_limits<int64_t>::min()};
    const int64_t byte = next();
    return byte < 240 ? byte - 8 : kEdges[static_cast<size_t>(byte - 240) % std::size(kEdges)];
  }

 private:
  int64_t next() {
    if (bytes_.empty()) return 0;
    const auto byte = static_cast<unsigned char>(bytes_.front());
    bytes_.remove_prefix(1);
    return byte;
  }
  std::string_view bytes_;
};

/// Numbers as an argument: i32 or i64.
struct Numbers {
  Numbers(std::vector<int64_t> given, bool is_short) : values(std::move(given)) {
    for (int64_t& value : values) value = is_short ? static_cast<int32_t>(value) : value;
    words.assign(values.begin(), values.end());
    const auto length = static_cast<int64_t>(values.size());
    view = is_short ? TensorView::contiguous(words.data(), DType::i32, {length})
                    : TensorView::contiguous(values.data(), DType::i64, {length});
  }
  std::vector<int64_t> values;
  std::vector<int32_t> words;
  TensorView view;
};

/// Small whole numbers, exact in each type.
struct Floats {
  Floats(int64_t length, DType dtype) : memory(static_cast<size_t>(length) * dtype_bytes(dtype)) {
    for (int64_t i = 0; i < length; ++i) base::store_element(memory.data(), dtype, i, static_cast<double>(at(i)));
    view = TensorView::contiguous(memory.data(), dtype, {length});
  }
  static int64_t at(int64_t i) { return i * 7 % 13 - 5; }
  std::vector<char> memory;
  TensorView view;
};

/// What the argument says of a bag of a feature.
struct Wanted {
  const std::vector<int64_t>&offsets, &indices;
  std::string_view mode, bounds;
  bool has_factors;

  bool is_bag(int64_t bag) const {
    const int64_t begin = offsets[static_cast<size_t>(bag)], end = offsets[static_cast<size_t>(bag) + 1];
    return begin >= 0 && end >= begin && end <= static_cast<int64_t>(indices.size());
  }
  /// An index that says padding itself is left out; one that is bounded to that row is not.
  std::optional<int64_t> row(int64_t index, const spec::EmbeddingTable& table) const {
    if (index == table.padding && index >= 0) return {};
    if (index >= 0 && index < table.rows) return index;
    if (bounds == "clamp" && index > 0) return table.rows - 1;
    return bounds == "clamp" || bounds == "zero_row" ? std::optional<int64_t>(0) : std::nullopt;
  }
  double element(int64_t bag, const spec::EmbeddingTable& table, int64_t first_weight, int64_t width) const {
    double sum = 0, count = 0;
    if (!is_bag(bag)) return 0;
    for (int64_t i = offsets[static_cast<size_t>(bag)]; i < offsets[static_cast<size_t>(bag) + 1]; ++i) {
      const std::optional<int64_t> at = row(indices[static_cast<size_t>(i)], table);
      if (!at) continue;
      const auto value = static_cast<double>(Floats::at(first_weight + *at * width));
      const double term = has_factors ? value * static_cast<double>(Floats::at(i)) : value;
      sum = mode != "max" ? sum + term : count == 0 ? term : std::max(sum, term);
      ++count;
    }
    return mode == "mean" && count > 0 ? sum / count : sum;
  }
};

/// Whether a call with bounds `error` may go on.
bool are_good(const Wanted& wanted, const spec::Placement& placement, int64_t batch) {
  if (wanted.offsets.front() != 0 || wanted.offsets.back() != static_cast<int64_t>(wanted.indices.size())) return false;
  if (!std::is_sorted(wanted.offsets.begin(), wanted.offsets.end())) return false;
  for (size_t bag = 0; bag + 1 < wanted.offsets.size(); ++bag) {
    const auto& feature = placement.features[bag / static_cast<size_t>(batch)];
    for (int64_t i = wanted.offsets[bag]; i < wanted.offsets[bag + 1]; ++i) {
      const int64_t index = wanted.indices[static_cast<size_t>(i)];
      if (index < 0 || index >= placement.tables[static_cast<size_t>(feature.table)].rows) return false;
    }
  }
  return true;
}

}  // namespace

void run(std::string_view input) {
  static const spec::Placement placement = spec::read_placement(kPlacement, 1, kColumns).value();
  const auto features = static_cast<int64_t>(placement.features.size());
  int64_t elements = 0;
  const std::vector<int64_t> slices = placement.slices(0, &elements);

  Bytes bytes(input);
  const std::string mode = kModes[bytes.below(3)], bounds = kBounds[bytes.below(5)];
  const DType dtype = kTypes[bytes.below(4)];
  const bool is_short = bytes.below(2) == 1, has_short_offsets = bytes.below(2) == 1, has_factors = bytes.below(2) == 1;
  const int64_t batch = bytes.below(kMostBatch + 1), first_row = bytes.below(batch + 1);
  std::vector<int64_t> numbers(static_cast<size_t>(features * batch + bytes.below(16)));  // one more is right
  for (int64_t& value : numbers) value = bytes.number();
  const Numbers offsets(std::move(numbers), has_short_offsets);
  std::vector<int64_t> rows;
  while (bytes.left() > 0) rows.push_back(bytes.number());
  const Numbers indices(std::move(rows), is_short);
  const auto length = static_cast<int64_t>(indices.values.size());
  const Floats weights(elements, dtype), factors(length, dtype);

  spec::OpSpec op{.op = "embedding_a2a", .m = batch, .n = kColumns, .ranks = 1};
  op.fields = {{"batch", batch}, {"bounds", bounds}, {"mode", mode}, {"placement", std::string(kPlacement)}};
  const TensorView tensors[] = {weights.view, indices.view, offsets.view, has_factors ? factors.view : TensorView{}};
  const std::string why = spec::check_bags(op, 0, tensors, /*reads_memory=*/true);
  const bool fits =
      offsets.values.size() == static_cast<size_t>(features * batch + 1) && !(has_factors && mode != "sum");
  if (!fits) return FUZZ_REQUIRE(!why.empty());
  const Wanted wanted{offsets.values, indices.values, mode, bounds, has_factors};
  const bool is_good = are_good(wanted, placement, batch);
  FUZZ_REQUIRE(why.empty() == (bounds != "error" || is_good));
  if (bounds == "none" && !is_good) return;  // which nobody looks at

  std::vector<double> pooled(static_cast<size_t>((batch - first_row) * kColumns));
  spec::Schedule schedule;
  schedule.params = {{"G", int64_t{1}}, {"M", batch}, {"N", kColumns}};
  schedule.params.insert(op.fields.begin(), op.fields.end());
  const std::vector<std::vector<TensorView>> reads,
      writes = {{TensorView::contiguous(pooled.data(), DType::fp64, {batch - first_row, kColumns})}};
  const spec::Task task;
  spec::pool_bags({schedule, task, reads, writes, 0, first_row, tensors});
  int64_t column = 0;
  for (int64_t f = 0; f < features; ++f) {
    const spec::EmbeddingFeature& feature = placement.features[static_cast<size_t>(f)];
    for (int64_t j = 0; j < feature.width; ++j, ++column)
      for (int64_t b = first_row; b < batch; ++b)
        FUZZ_REQUIRE(pooled[static_cast<size_t>((b - first_row) * kColumns + column)] ==
                     wanted.element(f * batch + b, placement.tables[static_cast<size_t>(feature.table)],
                                    slices[static_cast<size_t>(f)] + j, feature.width));
  }
}

}  // namespace overlace::fuzz
