#include "src/study/workload/dlrm.h"

#include <algorithm>
#include <string_view>

#include "src/study/network/collectives.h"

namespace overlace::study {
namespace {

constexpr double kTorusLinkGBps = 26.8435456;  // 25 GiB/s, 200 Gb/s as ASTRA-sim counts
constexpr double kTorusAlphaUs = 0.93625;
constexpr uint64_t kProbeBytes = 64 << 20;

}  // namespace

base::Result<DlrmTime> dlrm_step(const DlrmModel& model, const DlrmMachine& machine) {
  if (model.gpus < 2 || model.tables < 1 || model.local_batch < 1 || model.mlp_layers < 1 || model.mlp_width < 1 ||
      model.embedding < 1 || model.pooling < 1 || model.element_bytes < 1)
    return base::invalid_argument("dlrm: {} GPUs, {} tables, batch {}, wanted at least 2, 1, 1 and a model", model.gpus,
                                  model.tables, model.local_batch);
  if (!(machine.hbm_GBps > 0) || !(machine.tflops > 0) || !(machine.all_reduce_GBps > 0) ||
      !(machine.all_to_all_GBps > 0) || !(machine.kernel_us >= 0))
    return base::invalid_argument("dlrm: memory {}, all-reduce {}, all-to-all {} GB/s, {} TFLOP/s, wanted > 0",
                                  machine.hbm_GBps, machine.all_reduce_GBps, machine.all_to_all_GBps, machine.tflops);
  const double pooled = static_cast<double>(model.tables) * model.gpus * model.local_batch * model.embedding *
                        model.element_bytes;  // bytes that a GPU pools, for the samples of all
  const double weights = static_cast<double>(model.mlp_layers) * model.mlp_width * model.mlp_width;
  DlrmTime time;
  time.gather_us = pooled * model.pooling / (machine.hbm_GBps * 1e3);
  time.all_to_all_us = pooled / (machine.all_to_all_GBps * 1e3);
  time.mlp_us = 3 * (2 * weights * model.local_batch / (machine.tflops * 1e6) + model.mlp_layers * machine.kernel_us);
  time.all_reduce_us =
      2.0 * (model.gpus - 1) / model.gpus * weights * model.element_bytes / (machine.all_reduce_GBps * 1e3);
  const double back_us = machine.backward_gather * time.gather_us;
  const double rest_us = time.mlp_us + time.all_reduce_us;
  const auto fused_us = [&](double gather_us) {
    return std::min(gather_us + time.all_to_all_us, std::max(gather_us, time.all_to_all_us) * machine.fused_loss);
  };
  time.unfused_us = time.gather_us + back_us + 2 * time.all_to_all_us + rest_us;
  time.forward_fused_us = fused_us(time.gather_us) + back_us + time.all_to_all_us + rest_us;
  time.fused_us = fused_us(time.gather_us) + fused_us(back_us) + rest_us;
  return time;
}

base::Result<DlrmBand> dlrm_band(const DlrmMachine& machine) {
  DlrmBand band;
  for (int tables = 1; tables <= 8; tables *= 2)
    for (int batch = 256; batch <= 4096; batch *= 2) {
      DlrmModel model;
      model.tables = tables;
      model.local_batch = batch;
      const base::Result<DlrmTime> time = dlrm_step(model, machine);
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
