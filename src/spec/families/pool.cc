#include "src/spec/families/pool.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <optional>
#include <utility>
#include <vector>

#include "src/base/format.h"
#include "src/base/half.h"
#include "src/spec/families/placement.h"

namespace overlace::spec {
namespace {

constexpr std::string_view kBounds[] = {"error", "ignore", "clamp", "zero_row", "none"};

const std::string& text_at(const Params& params, std::string_view name) {
  return std::get<std::string>(params.find(name)->second);
}

bool is_integer(const TensorView& t) { return t.dtype == DType::i32 || t.dtype == DType::i64; }
int64_t integer_at(const TensorView& t, int64_t i) {
  return t.dtype == DType::i64 ? static_cast<const int64_t*>(t.data)[i] : static_cast<const int32_t*>(t.data)[i];
}
int64_t length_of(const TensorView& t) { return t.ndim == 1 ? t.dim(0) : 0; }

/// The arguments of role data.
struct Bags {
  const TensorView &weights, &indices, &offsets, &factors;
  explicit Bags(std::span<const TensorView> t) : weights(t[0]), indices(t[1]), offsets(t[2]), factors(t[3]) {}

  /// Entries of a bag; none where the offsets fall or leave the indices.
  std::pair<int64_t, int64_t> entries(int64_t bag) const {
    const int64_t begin = integer_at(offsets, bag), end = integer_at(offsets, bag + 1);
    const bool fits = 0 <= begin && begin <= end && end <= length_of(indices);
    return fits ? std::pair(begin, end) : std::pair(int64_t{0}, int64_t{0});
  }
};

std::string check_vector(const char* name, const TensorView& t, int64_t length) {
  if (t.ndim != 1 || (t.dim(0) > 1 && t.stride(0) != 1))
    return base::format("{} must be one contiguous dimension, got {}", name, t.ndim == 0 ? "none" : t.shape());
  if (length >= 0 && t.dim(0) != length) return base::format("{} has {} elements, wanted {}", name, t.dim(0), length);
  return t.dim(0) > 0 && t.data == nullptr ? base::format("{} is null, wanted memory", name) : "";
}

std::string check_shapes(const OpSpec& op, int rank, const Placement& placement, const Bags& bags) {
  const auto [begin, end] = placement.features_of(rank);
  int64_t elements = 0;
  (void)placement.slices(rank, &elements);
  std::string why = check_vector("weights", bags.weights, elements);
  if (why.empty() && dtype_bytes(bags.weights.dtype) == 1)
    why = base::format("weights is {}, wanted fp64, fp32, fp16 or bf16", dtype_name(bags.weights.dtype));
  if (why.empty()) why = check_vector("indices", bags.indices, -1);
  if (why.empty()) why = check_vector("offsets", bags.offsets, static_cast<int64_t>(end - begin) * op.m + 1);
  for (const auto& [name, t] : {std::pair("indices", &bags.indices), std::pair("offsets", &bags.offsets)})
    if (why.empty() && !is_integer(*t)) why = base::format("{} is {}, wanted i32 or i64", name, dtype_name(t->dtype));
  if (!why.empty() || !bags.factors.defined()) return why;
  if (const std::string& mode = text_at(op.fields, "mode"); mode != "sum")
    return base::format("per_sample_weights are given with mode {}, wanted mode sum", mode);
  if (bags.factors.dtype != bags.weights.dtype)
    return base::format("per_sample_weights is {}, wanted {} as weights", dtype_name(bags.factors.dtype),
                        dtype_name(bags.weights.dtype));
  return check_vector("per_sample_weights", bags.factors, length_of(bags.indices));
}

/// The first offset or index that is none.
std::optional<BadBag> find_bad_bag(const OpSpec& op, int rank, const Placement& placement, const Bags& bags) {
  const auto [first, last] = placement.features_of(rank);
  const int64_t num_bags = length_of(bags.offsets) - 1, length = length_of(bags.indices);
  if (const int64_t begin = integer_at(bags.offsets, 0); begin != 0)
    return BadBag{.kind = BadBagKind::first_offset, .value = begin};
  if (const int64_t end = integer_at(bags.offsets, num_bags); end != length)
    return BadBag{.kind = BadBagKind::last_offset, .position = num_bags, .value = end, .most = length};
  for (int64_t bag = 0; bag < num_bags; ++bag) {
    const int64_t begin = integer_at(bags.offsets, bag), end = integer_at(bags.offsets, bag + 1);
    if (begin > end || end > length)
      return BadBag{.kind = BadBagKind::offset, .position = bag + 1, .value = end, .least = begin, .most = length};
    const size_t feature = first + static_cast<size_t>(bag / op.m);
    const int64_t rows = placement.tables[static_cast<size_t>(placement.features[feature].table)].rows;
    for (int64_t i = begin; i < end; ++i)
      if (const int64_t row = integer_at(bags.indices, i); row < 0 || row >= rows)
        return BadBag{.feature = static_cast<int64_t>(feature),
                      .bag = bag % op.m,
                      .position = i - begin,
                      .value = row,
                      .most = rows - 1};
  }
  return {};
}

/// How a bag becomes a row.
struct Pooling {
  enum class Mode { sum, mean, max } mode;
  std::string_view bounds;

  explicit Pooling(const Schedule& schedule) : bounds(text_at(schedule.params, "bounds")) {
    const std::string& name = text_at(schedule.params, "mode");
    mode = name == "sum" ? Mode::sum : name == "mean" ? Mode::mean : Mode::max;
  }
  /// The row that an index names; -1: none.
  int64_t row(int64_t index, const EmbeddingTable& table) const {
    if (index == table.padding && table.padding >= 0) return -1;
    if ((index >= 0 && index < table.rows) || bounds == "none") return index;
    if (bounds == "clamp") return std::clamp<int64_t>(index, 0, table.rows - 1);
    return bounds == "zero_row" ? 0 : -1;
  }
  /// Sums of one bag into `sums`, a value for each column of the slice that begins at `slice` in the weights.
  void pool(const Bags& bags, int64_t bag, const EmbeddingTable& table, int64_t slice, std::span<double> sums) const {
    std::fill(sums.begin(), sums.end(), 0.0);
    const auto width = static_cast<int64_t>(sums.size());
    const auto [begin, end] = bags.entries(bag);
    int64_t count = 0;
    for (int64_t i = begin; i < end; ++i) {
      const int64_t at = row(integer_at(bags.indices, i), table);
      if (at < 0) continue;
      const double factor = bags.factors.defined() ? base::load_element(bags.factors.data, bags.factors.dtype, i) : 1;
      for (int64_t j = 0; j < width; ++j) {
        const double value = base::load_element(bags.weights.data, bags.weights.dtype, slice + at * width + j);
        double& sum = sums[static_cast<size_t>(j)];
        const bool is_larger = count == 0 || !(value <= sum);  // NaN, too
        sum = mode != Mode::max ? sum + factor * value : is_larger && sum == sum ? value : sum;
      }
      ++count;
    }
    if (mode == Mode::mean && count > 0)
      for (double& sum : sums) sum /= static_cast<double>(count);
  }
};

}  // namespace

bool is_bounds(std::string_view name) {
  return std::find(std::begin(kBounds), std::end(kBounds), name) != std::end(kBounds);
}

std::string text_of(const BadBag& bad, int rank) {
  switch (bad.kind) {
    case BadBagKind::first_offset:
      return base::format("offsets[0] is {}, wanted 0", bad.value);
    case BadBagKind::last_offset:
      return base::format("offsets[{}] is {}, wanted {}: the length of indices", bad.position, bad.value, bad.most);
    case BadBagKind::offset:
      return base::format("offsets[{}] is {}, wanted {} to {}", bad.position, bad.value, bad.least, bad.most);
    case BadBagKind::index:
      break;
  }
  return base::format("rank {}, feature {}, bag {}, position {}: index is {}, wanted {} to {}: the table has {} rows",
                      rank, bad.feature, bad.bag, bad.position, bad.value, bad.least, bad.most, bad.most + 1);
}

std::string check_bags(const OpSpec& op, int rank, std::span<const TensorView> tensors, bool reads_memory) {
  const std::string& mode = text_at(op.fields, "mode");
  if (mode != "sum" && mode != "mean" && mode != "max")
    return base::format("mode is '{}', wanted sum, mean or max", mode);
  const std::string& bounds = text_at(op.fields, "bounds");
  if (!is_bounds(bounds)) return base::format("bounds is '{}', wanted error, ignore, clamp, zero_row or none", bounds);
  const base::Result<Placement> placement = read_placement(text_at(op.fields, "placement"), op.ranks, op.n);
  if (!placement.ok()) return std::string(placement.status().message());
  const Bags bags(tensors);
  if (std::string why = check_shapes(op, rank, *placement, bags); !why.empty()) return why;
  if (!reads_memory || bounds != "error") return "";
  const std::optional<BadBag> bad = find_bad_bag(op, rank, *placement, bags);
  return bad ? text_of(*bad, rank) : "";
}

void pool_bags(const HostTask& task) {
  if (task.writes[0].empty()) return;
  const Schedule& schedule = task.schedule;
  const TensorView& to = task.writes[0][0];
  const int ranks = static_cast<int>(std::get<int64_t>(schedule.params.find("G")->second));
  const int64_t batch = std::get<int64_t>(schedule.params.find("M")->second);
  const int64_t columns = std::get<int64_t>(schedule.params.find("N")->second);
  const Placement placement = read_placement(text_at(schedule.params, "placement"), ranks, columns).value();
  const Pooling pooling(schedule);
  const Bags bags(task.tensors);
  int64_t elements = 0;
  const std::vector<int64_t> slices = placement.slices(task.rank, &elements);
  const auto [begin, end] = placement.features_of(task.rank);
  std::vector<double> sums;
  for (int64_t i = 0; i < to.dim(0); ++i) {
    int64_t column = 0;
    const auto store = [&](double value) {
      base::store_element(to.data, to.dtype, i * to.stride(0) + column++, value);
    };
    for (size_t f = begin; f < end; ++f) {
      const EmbeddingFeature& feature = placement.features[f];
      sums.resize(static_cast<size_t>(feature.width));
      const int64_t bag = static_cast<int64_t>(f - begin) * batch + task.first_row + i;
      pooling.pool(bags, bag, placement.tables[static_cast<size_t>(feature.table)], slices[f - begin], sums);
      for (const double sum : sums) store(sum);
    }
    while (column < to.dim(1)) store(0);  // what makes the blocks of all ranks equally wide
  }
}

}  // namespace overlace::spec
