#include "src/study/workload/dlrm.h"

#include <algorithm>
#include <string>
#include <string_view>

#include "src/base/format.h"
#include "src/sim/schedule/simulation.h"
#include "src/spec/families/families.h"
#include "src/spec/operators.h"
#include "src/study/network/collectives.h"

namespace overlace::study {
namespace {

constexpr double kTorusLinkGBps = 26.8435456;  // 25 GiB/s, 200 Gb/s as ASTRA-sim counts
constexpr double kTorusAlphaUs = 0.93625;
constexpr uint64_t kProbeBytes = 64 << 20;
constexpr double kAssumedLoss = 1.03;
constexpr int64_t kRows = 1000000;  // of a table: more than caches hold
constexpr int kDegrees[] = {1, 2};  // more chunks of a message for each feature and peer take longer to start

base::Status check_rates(const DlrmModel& model, const DlrmMachine& machine) {
  if (model.gpus < 2 || model.tables < 1 || model.local_batch < 1 || model.mlp_layers < 1 || model.mlp_width < 1 ||
      model.embedding < 1 || model.pooling < 1 || model.element_bytes < 1)
    return base::invalid_argument("dlrm: {} GPUs, {} tables, batch {}, wanted at least 2, 1, 1 and a model", model.gpus,
                                  model.tables, model.local_batch);
  if (!(machine.hbm_GBps > 0) || !(machine.tflops > 0) || !(machine.all_reduce_GBps > 0) ||
      !(machine.all_to_all_GBps > 0) || !(machine.kernel_us >= 0))
    return base::invalid_argument("dlrm: memory {}, all-reduce {}, all-to-all {} GB/s, {} TFLOP/s, wanted > 0",
                                  machine.hbm_GBps, machine.all_reduce_GBps, machine.all_to_all_GBps, machine.tflops);
  return {};
}

/// Every GPU has `tables` tables, whole; the result has the features of all.
spec::OpSpec problem_of(const DlrmModel& model) {
  std::string features;
  for (int f = 0; f < model.gpus * model.tables; ++f)
    features += base::format(R"({}{{"table":0,"rank":{},"column":{}}})", f == 0 ? "" : ",", f / model.tables,
                             int64_t{f} * model.embedding);
  const int64_t batch = int64_t{model.gpus} * model.local_batch;
  spec::OpSpec op{.op = std::string(spec::kEmbeddingA2a.name),
                  .m = batch,
                  .n = int64_t{model.gpus} * model.tables * model.embedding,
                  .ranks = model.gpus,
                  .row_offsets = {}};
  op.dtype = op.out_dtype = model.element_bytes == 2 ? DType::bf16 : DType::fp32;
  op.fields = {{"batch", batch},
               {"bounds", std::string("error")},
               {"mode", std::string("sum")},
               {"placement", base::format(R"({{"tables":[{{"rows":{},"dim":{}}}],"entries":{},"features":[{}]}})",
                                          kRows, model.embedding, model.pooling, features)}};
  return op;
}

/// The GPU behind a network on which each sends and receives at one rate.
spec::Machine behind(spec::Machine gpu, double GBps) {
  gpu.copy.pair_us = {};
  gpu.copy.peer_GBps.value = gpu.copy.all_GBps.value = GBps;
  gpu.link.egress_GBps.value = gpu.link.ingress_GBps.value = GBps;
  return gpu;
}

}  // namespace

base::Result<DlrmExchange> dlrm_assumed(const DlrmModel& model, const DlrmMachine& machine) {
  OVERLACE_TRY(check_rates(model, machine));
  const double pooled = static_cast<double>(model.tables) * model.gpus * model.local_batch * model.embedding *
                        model.element_bytes;  // bytes that a GPU pools, for the samples of all
  DlrmExchange out{.fused_loss = kAssumedLoss};
  out.gather_us = pooled * model.pooling / (machine.hbm_GBps * 1e3);
  out.all_to_all_us = pooled / (machine.all_to_all_GBps * 1e3);
  out.serial_us = out.gather_us + out.all_to_all_us;
  return out;
}

base::Result<DlrmExchange> dlrm_simulated(const DlrmModel& model, const DlrmMachine& machine,
                                          const spec::Machine& gpu) {
  OVERLACE_TRY(check_rates(model, machine));
  if (model.element_bytes != 2 && model.element_bytes != 4)
    return base::invalid_argument("dlrm: elements have {} bytes, wanted 2 or 4", model.element_bytes);
  const spec::OpSpec op = problem_of(model);
  const spec::Machine behind_network = behind(gpu, machine.all_to_all_GBps);
  const auto us = [&](const spec::Schedule& schedule, double* out) -> base::Status {
    const auto run = sim::try_simulate(schedule, behind_network);
    if (run.ok()) *out = run->us();
    return run.status();
  };
  DlrmExchange out;
  OVERLACE_TRY(us(spec::make_bound(op, spec::Purpose::compute), &out.gather_us));
  OVERLACE_TRY(us(spec::make_bound(op, spec::Purpose::comm), &out.all_to_all_us));
  OVERLACE_TRY(us(spec::make_schedule(op, spec::kSerial), &out.serial_us));
  double fused_us = out.serial_us;
  for (const spec::FamilyDef& family : spec::find_operator(op.op)->families)
    for (const int degree : kDegrees) {
      if (family.purpose != spec::Purpose::plan || !family.has_degree) continue;
      double one_us = 0;
      OVERLACE_TRY(us(spec::make_schedule(op, family.name, degree), &one_us));
      fused_us = std::min(fused_us, one_us);
    }
  out.fused_loss = fused_us / std::max(out.gather_us, out.all_to_all_us);
  return out;
}

base::Result<DlrmTime> dlrm_step(const DlrmModel& model, const DlrmMachine& machine, const DlrmExchange& forward) {
  OVERLACE_TRY(check_rates(model, machine));
  const double weights = static_cast<double>(model.mlp_layers) * model.mlp_width * model.mlp_width;
  DlrmTime time;
  time.gather_us = forward.gather_us;
  time.all_to_all_us = forward.all_to_all_us;
  time.mlp_us = 3 * (2 * weights * model.local_batch / (machine.tflops * 1e6) + model.mlp_layers * machine.kernel_us);
  time.all_reduce_us =
      2.0 * (model.gpus - 1) / model.gpus * weights * model.element_bytes / (machine.all_reduce_GBps * 1e3);
  const double back_gather_us = machine.backward_gather * time.gather_us;
  const double back_us = back_gather_us + time.all_to_all_us;
  const double rest_us = time.mlp_us + time.all_reduce_us;
  const auto fused_us = [&](double gather_us, double serial_us) {
    return std::min(serial_us, std::max(gather_us, time.all_to_all_us) * forward.fused_loss);
  };
  const double forward_us = fused_us(time.gather_us, forward.serial_us);
  time.unfused_us = forward.serial_us + back_us + rest_us;
  time.forward_fused_us = forward_us + back_us + rest_us;
  time.fused_us = forward_us + fused_us(back_gather_us, back_us) + rest_us;
  return time;
}

base::Result<DlrmBand> dlrm_band(const DlrmMachine& machine) {
  DlrmBand band;
  for (int tables = 1; tables <= 8; tables *= 2)
    for (int batch = 256; batch <= 4096; batch *= 2) {
      DlrmModel model;
      model.tables = tables;
      model.local_batch = batch;
      const base::Result<DlrmExchange> forward = dlrm_assumed(model, machine);
      if (!forward.ok()) return forward.status();
      const base::Result<DlrmTime> time = dlrm_step(model, machine, *forward);
      if (!time.ok()) return time.status();
      band.least_forward = std::min(band.least_forward, time->forward_gain());
      band.most_forward = std::max(band.most_forward, time->forward_gain());
      band.least = std::min(band.least, time->gain());
      band.most = std::max(band.most, time->gain());
    }
  return band;
}

base::Result<double> dlrm_all_to_all_GBps(std::string_view name) {
  const bool is_rail = name == "rail";
  if (!is_rail && name != "torus" && name != "ring")
    return base::invalid_argument("dlrm: network is {}, wanted torus, ring or rail", name);
  const base::Result<Network> network =
      is_rail ? rail_fat_tree(16, 8, 50, 64, 1) : torus({16, 8}, {kTorusLinkGBps, kTorusAlphaUs});
  if (!network.ok()) return network.status();
  double us = lower_bound_us(Collective::all_to_all, *network, kProbeBytes);
  if (name == "ring") {
    CollectiveOptions options;
    options.forwarding = Forwarding::store_and_forward;
    options.splits = 4;
    const base::Result<CollectiveTime> time =
        run_collective(Collective::all_to_all, "ring", *network, kProbeBytes, options);
    if (!time.ok()) return time.status();
    us = time->us;
  }
  return static_cast<double>(kProbeBytes) / us * 1e-3;
}

}  // namespace overlace::study
