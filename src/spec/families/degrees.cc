// What the planner estimates: degrees of families on a machine.
#include <algorithm>
#include <array>
#include <span>

#include "src/base/format.h"
#include "src/spec/costs.h"
#include "src/spec/families/families.h"
#include "src/spec/fusable.h"
#include "src/spec/fused_pod.h"
#include "src/spec/machine.h"
#include "src/spec/operators.h"

namespace overlace::spec {
namespace {

constexpr int64_t kLeastCopy = 512 << 10;  // bytes; below it a copy engine reaches a fifth of its rate
constexpr std::array kDegrees = {1, 2, 4, 8, 16};
/// GPUs: degrees beyond, and one batch of all peers' shards (other_shards at 1), were not measured, and models that
/// are half a percent off would take them for as little.
constexpr int kMostMeasured = 4;
constexpr std::array kSlabs = {4, 8};     // 2 and 16 were slower in six of seven cases of bench/results/fused_x4.json
constexpr std::array kTileGroups = {64};  // of tma_slot: what its kernel was measured with
constexpr std::array kTrackedChunks = {2, 4};
/// Bytes of a copy below which its trigger costs more than a third of the rate.
constexpr int64_t kLeastTriggered = int64_t{4} << 20;
constexpr std::array kBands = {4, 8};  // of gemm_ar: 1 and 16 were seldom ahead (docs/results/h200x2.md)

/// `cut`: what is cut into `per_degree` or more for each degree.
std::vector<int> degrees_of(const OpSpec& op, const Machine& machine, int64_t cut, int64_t per_degree) {
  const bool is_gather = gathers(op.op);
  const int64_t shard = rows_of_product(op) / op.ranks;
  const int64_t row = is_gather ? op.k * static_cast<int64_t>(dtype_bytes(op.dtype))
                                : op.n * static_cast<int64_t>(dtype_bytes(op.out_dtype));
  std::vector<int> out;
  for (const int q : kDegrees) {
    if (machine.is_gpu && q > kMostMeasured) continue;
    const bool is_small = machine.is_gpu && q > 1 && shard * row / q < kLeastCopy;
    if (q == 1 || !(cut < per_degree * q || is_small)) out.push_back(q);
  }
  return out;
}

std::vector<int> kernel_degrees(const OpSpec& op, const Machine& machine, std::span<const int> degrees) {
  if (!has_fused_kernels(machine) || !is_fusable(op)) return {};
  return {degrees.begin(), degrees.end()};
}

}  // namespace

std::vector<int> degree_of_one(const OpSpec&, const Machine&) { return {1}; }

std::vector<int> chunk_degrees(const OpSpec& op, const Machine& machine) {
  return degrees_of(op, machine, rows_of_product(op) / op.ranks, 1);
}

std::vector<int> slab_degrees(const OpSpec& op, const Machine& machine) {
  // NOTE: whether cuBLASLt adds products with scales of rows to a wide sum was not tried; a plan must not fail by it.
  if (machine.is_gpu && gathers(op.op) && op.scales == Scales::rows) return {};
  return degrees_of(op, machine, gathers(op.op) ? op.k : op.n, 8);
}

std::vector<int> batch_degrees(const OpSpec& op, const Machine& machine) {
  std::vector<int> out = chunk_degrees(op, machine);
  if (machine.is_gpu) std::erase(out, 1);
  return out;
}

std::vector<int> slab_kernel_degrees(const OpSpec& op, const Machine& machine) {
  std::vector<int> out = kernel_degrees(op, machine, kSlabs);
  std::erase_if(out, [&](int slabs) { return op.k / slabs < 64; });
  return out;
}

std::vector<int> tile_kernel_degrees(const OpSpec& op, const Machine& machine) {
  return kernel_degrees(op, machine, kTileGroups);
}

/// NOTE: none where the machine's file has no error of the model for the family, that is where it was never measured:
/// its triggers are known from one kernel of a bench alone.
std::vector<int> tracked_kernel_degrees(const OpSpec& op, const Machine& machine) {
  const auto known = machine.recurrence_errors.find(op.op);
  if (known == machine.recurrence_errors.end() || !known->second.contains("tracked")) return {};
  std::vector<int> out = kernel_degrees(op, machine, kTrackedChunks);
  const int64_t shard = op.m / op.ranks * op.n * static_cast<int64_t>(dtype_bytes(op.out_dtype));
  std::erase_if(out, [&](int chunks) { return shard / chunks < kLeastTriggered; });
  return out;
}

std::vector<int> band_kernel_degrees(const OpSpec& op, const Machine& machine) {
  return kernel_degrees(op, machine, kBands);
}

std::vector<int> small_m_degrees(const OpSpec& op, const Machine& machine) {
  return has_fused_kernels(machine) && has_measured_tokens(op, machine) ? std::vector<int>{1} : std::vector<int>{};
}

void align_to_slabs(const OpSpec&, FamilyOptions* options) { options->align_columns = kTileDepth; }

void align_to_tiles(const OpSpec& op, FamilyOptions* options) {
  options->align = kSlotTileRows;
  options->align_columns = slot_tile_cols(op);
}

std::string capability_text(int compute_capability) {
  return base::format("compute capability {}.{}", compute_capability / 10, compute_capability % 10);
}

int capability_of_team(std::span<const int> capabilities) {
  for (const int one : capabilities)
    if (one != 0 && one != kFusedCapability) return one;
  return kFusedCapability;
}

std::string fused_problem(const FusedShape& shape) {
  const auto [m, n, k, ranks, activation, is_small_m] = shape;
  if (activation == Activation::swiglu && n % 16 != 0)
    return base::format("swiglu of N {}; wanted: a multiple of 16", n);
  if (n < 8 || n % 8 != 0 || k < 8 || k % 8 != 0) return base::format("N {}, K {}; wanted: multiples of 8", n, k);
  if (ranks < 2 || ranks > kOrderShards) return base::format("{} ranks; wanted: 2 to {}", ranks, kOrderShards);
  if (is_small_m && m > kOneShotTokens) return base::format("M {}; wanted: at most {}", m, kOneShotTokens);
  if (is_small_m && activation != Activation::none) return "swiglu of few rows; wanted: none";
  return "";
}

namespace {

/// One rank computes alone, whatever the kernels say to that.
FusedShape fused_shape(const OpSpec& op, bool is_small_m) {
  return {op.m, op.n, op.k, std::max(op.ranks, 2), op.activation, is_small_m};
}

}  // namespace

bool is_fusable(const OpSpec& op) {
  return op.dtype == DType::bf16 && op.out_dtype == DType::bf16 && op.b_layout == BLayout::nk &&
         !(op.gathered && has_empty_shard(op)) && fused_problem(fused_shape(op, /*is_small_m=*/false)).empty();
}

bool has_few_tokens(const OpSpec& op) {
  return find_family(op.op, ClosedForm::small_m_kernel) != nullptr && op.m > 0 && is_fusable(op) &&
         fused_problem(fused_shape(op, /*is_small_m=*/true)).empty();
}

double measured_tokens(const OpSpec& op, const Machine& machine) {
  constexpr double kMostElsewhere = 64;  // more were measured of sums on two ranks alone
  const double measured = machine.few_rows.measured_rows.value;
  return gathers(op.op) || op.ranks > 2 ? std::min(measured, kMostElsewhere) : measured;
}
bool has_measured_tokens(const OpSpec& op, const Machine& machine) {
  return has_few_tokens(op) && static_cast<double>(op.m) <= measured_tokens(op, machine);
}

}  // namespace overlace::spec
