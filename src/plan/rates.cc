#include "src/plan/rates.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "src/base/format.h"
#include "src/plan/decide.h"
#include "src/plan/recurrence.h"
#include "src/spec/costs.h"
#include "src/spec/operators.h"

namespace overlace::plan {
namespace {

/// GPUs: below this little was measured to gain and some to lose, whatever a model says: flags, launches and the
/// shortest copies take as long. Two H200: hiding 11 us gained 9 to 29 %, 5 us -19 to 11 % (mid_x2.jsonl).
constexpr double kMinHiddenUs = 10;

constexpr int64_t kMinRows = 64;
constexpr double kMinGain = 0.05;  // of the library's time, expected; less is within the model's error
constexpr int kDegrees[] = {1, 2, 4, 8};

/// What the rule knows of a machine.
spec::MachineRates rates_of(const spec::OpSpec& op, const spec::Machine& machine) {
  const double speedup = spec::product_speedup(machine, static_cast<int64_t>(dtype_bytes(op.dtype)));
  return {machine.is_gpu, std::max(machine.copy.all_GBps.value, machine.copy.peer_GBps.value) * 1e9,
          speedup * machine.gemm.sustained_TFLOPs.value * 1e12, machine.hosts};
}

/// CPU ranks on an emulated link; times in us.
struct Costs {
  double copy;        // of one copy with its signal
  double launch;      // of one more GEMM
  double collective;  // of one library collective, besides its bytes
  double contention;  // GEMM time lost per time of traffic beside it
  double memory;      // bytes per us that a reduction reads and writes
};
constexpr Costs kCpu = {40, 20, 60, 0.02, 4e3};
/// CPU ranks, messages between hosts (docs/results/hosts.md): each copy is one thread more that has to wake, and the
/// cores that compute copy what passes several times.
constexpr Costs kMessages = {150, 20, 60, 0.5, 4e3};
/// GPUs on several hosts. Launches and sums: machine/h200x4.json; a collective: NCCL's of few bytes took 8 to 15 us
/// in graphs (bench/results/decode_x2.jsonl); what a message costs was not measured, and is taken from CPU
/// ranks.
constexpr Costs kGpuMessages = {150, 1.3, 15, 0.02, 4.5e6};
/// GPUs of one host, products of other than 16 bits, of which nothing was measured: copies, launches and sums as there.
constexpr Costs kGpu = {20, 1.3, 15, 0.02, 4.5e6};

/// One problem in us: the GEMM, the transfer of one rank (each way, once), the reduction of my rows.
struct Times {
  double gemm, transfer, reduce;
};

/// Several hosts: all ranks of a host use its one link to each other host, flat schedules once for each rank there.
Times times_of(const spec::OpSpec& op, const spec::MachineRates& rates, const Costs& costs) {
  const double m = static_cast<double>(spec::rows_of_product(op)), n = static_cast<double>(op.n);
  const double k = static_cast<double>(op.k), g = op.ranks;
  const bool is_ag = spec::gathers(op.op);
  const double shard = is_ag ? m / g * k * static_cast<double>(dtype_bytes(op.dtype))
                             : m / g * n * static_cast<double>(dtype_bytes(op.out_dtype));
  const double touched = is_ag ? 0 : spec::exchanges(op.op) ? 2 * shard * (g - 1) : shard * (g + 1);
  const double reduce = touched / costs.memory;
  const double width = g / rates.hosts, crossing = rates.hosts > 1 ? width * width : g - 1;
  return {2 * m * n * k / rates.flops_per_s * 1e6, crossing * shard / rates.link_bytes_per_s * 1e6, reduce};
}

double gemm_beside_traffic_us(const Times& t, const Costs& costs) {
  return t.gemm + costs.contention * std::min(t.gemm, t.transfer);
}

/// The machine that the recurrence sees: products and transfers take what `t` says.
spec::Machine machine_of(const spec::OpSpec& op, const spec::MachineRates& rates, const Times& t, const Costs& costs) {
  constexpr double kBytesPerUs = 1e3;  // of a GB/s
  const bool is_ag = spec::gathers(op.op);
  const double row = is_ag ? static_cast<double>(op.k) * static_cast<double>(dtype_bytes(op.dtype))
                           : static_cast<double>(op.n) * static_cast<double>(dtype_bytes(op.out_dtype));
  const double whole = static_cast<double>(spec::rows_of_product(op)) * row, sent = whole * (op.ranks - 1) / op.ranks;
  const double collective = t.gemm > 0 ? spec::flow_of(op.op).passes * t.transfer + costs.collective : 0;
  spec::Machine out;
  out.ranks = op.ranks;
  out.gemm.tiles = {{1, 1, {0}, {0}}};
  out.gemm.sustained_TFLOPs = {rates.flops_per_s * 1e-12};
  out.copy.start_us = {costs.copy};
  out.copy.peer_GBps = out.copy.all_GBps =
      out.link.egress_GBps = {t.transfer > 0 ? sent / t.transfer / kBytesPerUs : 0};
  out.copy.local_GBps = out.memory.reduce_GBps = {costs.memory / kBytesPerUs};
  out.latency.launch_us = {costs.launch};
  for (spec::Curve* curve : {&out.collectives.all_gather_us, &out.collectives.reduce_scatter_us,
                             &out.collectives.all_reduce_us, &out.collectives.all_to_all_us})
    curve->points = {{whole, collective}, {2 * whole, 2 * collective}};
  out.contention = {{spec::Load::gemm_tensor, spec::Load::ce_in, {1 + costs.contention}}};
  return out;
}

/// Parts of other hosts' rows cross once per host. What a host has of its own hides them: computed first where rows are
/// gathered, last in the others, where host sums are taken one product after their partials and sums that come back to
/// all are sent behind the rest.
double hierarchical_us(const spec::OpSpec& op, const Times& flat, const Costs& costs, int q, int hosts) {
  const int width = op.ranks / hosts, parts = q * (hosts - 1);
  const bool is_gather = spec::gathers(op.op);
  const Times t{flat.gemm, flat.transfer / width, flat.reduce};
  const double gemm = gemm_beside_traffic_us(t, costs), far = gemm * (hosts - 1) / hosts;
  const double part = far / parts + costs.launch, transfer = t.transfer / parts + costs.copy * width;
  double computed = is_gather ? gemm - far + 2 * costs.launch : 0, link = 0;
  for (int i = 0; i < parts; ++i) {
    if (is_gather) {
      link += transfer;
      computed = std::max(computed, link) + part;
    } else {
      computed += part;
      link = std::max(link, computed + part) + transfer;
    }
  }
  if (is_gather) return computed;
  const double summed = std::max(gemm + (parts + 2) * costs.launch, link) + t.reduce * (1 + 1.0 / q);
  return spec::returns_to_all(op.op) ? summed + t.transfer + q * costs.copy * width : summed;
}

Decision library(std::string reason) {
  return {{std::string(spec::kLibrary), 1}, Tier::rule, std::move(reason) + ": library"};
}

/// Families that the rule tries, in its order.
std::vector<const spec::FamilyDef*> families_of_rule(const spec::OpSpec& op) {
  std::vector<const spec::FamilyDef*> out;
  for (const spec::FamilyDef& family : spec::find_operator(op.op)->families)
    if (family.rule > 0) out.push_back(&family);
  std::sort(out.begin(), out.end(), [](const auto* a, const auto* b) { return a->rule < b->rule; });
  return out;
}

}  // namespace

std::string too_little_to_hide(const spec::OpSpec& op, const spec::Machine& machine) {
  if (spec::form_of(op.op, spec::kLibrary) == spec::ClosedForm::none) return {};  // it may compute other than a GEMM
  const Times t = times_of(op, rates_of(op, machine), kGpu);
  if (!machine.is_gpu || std::min(t.gemm, t.transfer) >= kMinHiddenUs) return {};
  return base::format("GEMM {:.0f} us, transfer {:.0f} us: too little to hide", t.gemm, t.transfer);
}

Decision by_rates(const spec::OpSpec& op, const spec::Machine& known, uint64_t heap_bytes) {
  const spec::MachineRates rates = rates_of(op, known);
  if (op.ranks == 1) return library("one rank has nothing to transfer");
  if (spec::form_of(op.op, spec::kLibrary) == spec::ClosedForm::none) return library("no closed form of " + op.op);
  if (rates.flops_per_s <= 0) return library("the GEMM rate of this machine is unknown");
  const bool is_one = rates.hosts == 1;
  if (rates.link_bytes_per_s <= 0)
    return library(is_one ? "copies cost the computing core itself" : "the rate of the link between hosts is unknown");
  const Costs& costs = rates.is_gpu ? (is_one ? kGpu : kGpuMessages) : is_one ? kCpu : kMessages;
  const Times t = times_of(op, rates, costs);
  const int64_t rows = spec::rows_of_product(op);
  if (rows < kMinRows) return library(base::format("M {} is below {}, too few rows to cut", rows, kMinRows));

  // With one rank a host each piece crosses once anyway.
  const spec::OperatorDef& def = *spec::find_operator(op.op);
  const bool stays = op.scales == spec::Scales::rows && spec::gathers(op.op);  // its scales go no further than a host
  const bool may_span = def.knows_hosts && !stays && op.ranks % rates.hosts == 0 && rates.hosts < op.ranks;
  const int hosts = may_span ? rates.hosts : 1;
  const spec::Params options = {{"hosts", int64_t{hosts}}};
  const spec::Machine machine = machine_of(op, rates, t, costs);
  const Recurrence recurrence(op, machine);
  const double whole = recurrence.us({std::string(spec::kLibrary), 1}).value();
  Candidate best;
  double best_us = whole * (1 - kMinGain);
  int left_out = 0;
  const auto consider = [&](const Candidate& candidate, std::optional<double> us) {
    if (!us || *us >= best_us) return;
    if (!fits(op, candidate, heap_bytes, options)) {
      ++left_out;
      return;
    }
    best_us = *us;
    best = candidate;
  };
  // A host's sums wait for one rank more: behind a GEMM longer than the flat transfer that was measured to lose.
  const bool may_cross_once = hosts > 1 && (!spec::stays_with_owner(op.op) || t.gemm < t.transfer);
  const std::vector<const spec::FamilyDef*> families = families_of_rule(op);
  for (const int q : kDegrees) {
    if (rows / op.ranks < q * 16) break;
    for (const spec::FamilyDef* family : families) {
      const Candidate candidate = {std::string(family->name), q};
      if (family->form != spec::ClosedForm::hosts)
        consider(candidate, recurrence.us(candidate));
      else if (may_cross_once)
        consider(candidate,
                 hierarchical_us(op, t, costs, q, hosts) + recurrence.activation_us() + recurrence.norm_us());
    }
  }
  const std::string parts = base::format("GEMM {:.0f} us, transfer {:.0f} us", t.gemm, t.transfer);
  const std::string too_large =
      left_out == 0 ? "" : base::format("; {} faster schedules need more than {} bytes of heap", left_out, heap_bytes);
  if (best.family.empty()) {
    return library(
        base::format("{}: nothing expected to gain {:.0f} % on {:.0f} us{}", parts, 100 * kMinGain, whole, too_large));
  }
  std::string reason = base::format("{}: {} q {} expected at {:.0f} us, library at {:.0f} us{}", parts, best.family,
                                    best.degree, best_us, whole, too_large);
  return {std::move(best), Tier::rule, std::move(reason), {}, options};
}

}  // namespace overlace::plan
