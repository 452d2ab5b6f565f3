#include "src/sim/schedule/costs.h"

#include <algorithm>
#include <cmath>

#include "src/spec/costs.h"
#include "src/spec/names.h"
#include "src/spec/operators.h"
#include "src/spec/products.h"

namespace overlace::sim {
namespace {

using spec::Box;
using spec::Instance;
using spec::Kind;
using spec::Machine;

int64_t element_bytes(const spec::Schedule& schedule, const Box& box) {
  return static_cast<int64_t>(dtype_bytes(schedule.buffers[static_cast<size_t>(box.buffer)].dtype));
}

double us_of(double bytes, const spec::Figure& GBps) { return GBps.value > 0 ? bytes / GBps.value * 1e-3 : 0; }

std::vector<spec::GemmWork> products_of(const spec::Schedule& schedule, const spec::Expansion& expansion,
                                        const Instance& in) {
  const spec::Task& task = schedule.tasks[static_cast<size_t>(in.task)];
  const bool sums_rows = spec::sums_rows(task);
  std::vector<spec::GemmWork> out;
  for (const spec::ProductRows& rows : spec::product_rows(schedule, expansion, in)) {
    const Box &a = rows.a, &c = rows.c;
    if (a.empty()) continue;
    spec::GemmWork& p = out.emplace_back();
    p.m = c.count[c.ndim - 2];
    p.n = c.count[c.ndim - 1] * spec::columns_per_result(task.params);
    p.k = a.count[a.ndim - (sums_rows ? 2 : 1)];
    p.batch = rows.batch;
    p.in_bytes = element_bytes(schedule, a);
    p.out_bytes = element_bytes(schedule, c);
  }
  return out;
}

Work gemm_work(const spec::Schedule& schedule, const spec::Expansion& expansion, const Instance& in,
               const Machine& machine) {
  Work work;
  const spec::Task& task = schedule.tasks[static_cast<size_t>(in.task)];
  const bool streams = machine.is_gpu && task.kind == Kind::tiles && spec::takes_one_shot(schedule);
  const bool adds_rows = spec::sums_rows(task) && task.combine == spec::Combine::add;
  double us = 0, bytes = 0;
  for (const spec::GemmWork& p : products_of(schedule, expansion, in)) {
    us += (streams ? spec::one_shot_cost(machine, spec::gathers(schedule.op), p).stream_us
                   : spec::gemm_cost(machine, p).us) +
          (work.kernels > 0 ? machine.latency.launch_us.value : 0);
    ++work.kernels;
    work.flops += p.flops();
    bytes += p.bytes();
    if (!adds_rows) continue;
    const double sums = static_cast<double>(p.m) * static_cast<double>(p.n) * static_cast<double>(p.out_bytes);
    us += spec::reduce_us(machine, 2 * sums);  // read and written beside the product's own traffic
    bytes += sums;
  }
  work.amount = static_cast<uint64_t>(std::min(work.flops, 9e18));
  work.flow_us = us;
  work.memory_bytes = static_cast<int64_t>(bytes);
  work.load = spec::Load::gemm_tensor;
  return work;
}

base::Result<Work> copy_work(const spec::Schedule& schedule, const spec::Expansion& expansion, const Instance& in,
                             const Machine& machine) {
  Work work;
  work.load = spec::Load::ce_out;
  if (in.reads.size() != 1 || in.writes.size() != 1 || in.reads[0].size() != in.writes[0].size()) {
    return base::error(Errc::bad_schedule, "{}: a copy of {} regions to {}; wanted: one to one, with as many boxes",
                       in.id(schedule), in.reads.size(), in.writes.size());
  }
  int64_t boxes = 0, rows = 0;
  for (size_t i = 0; i < in.writes[0].size(); ++i) {
    const Box &to = in.writes[0][i], &from = in.reads[0][i];
    if (to.empty()) continue;
    if (work.to >= 0 && work.to != to.rank) {
      return base::error(Errc::not_supported,
                         "{}: a copy to ranks {} and {}; wanted: to one rank, as others are not simulated",
                         in.id(schedule), work.to, to.rank);
    }
    work.to = to.rank;
    ++boxes;
    const auto is_2d = [&](const Box& b) {
      const int last = b.ndim - 1;
      return last > 0 &&
             b.count[last] != expansion.buffer_shapes[static_cast<size_t>(b.buffer)][static_cast<size_t>(last)];
    };
    if (is_2d(to) || is_2d(from)) rows += to.numel() / to.count[to.ndim - 1];
  }
  work.moved_bytes = bytes_of(schedule, in.writes[0]);
  work.amount = static_cast<uint64_t>(work.moved_bytes);
  if (boxes == 0) return work;
  const bool is_local = work.to == expansion.rank;
  work.copies = boxes;
  const spec::Task& task = schedule.tasks[static_cast<size_t>(in.task)];
  const bool is_kernel = machine.is_gpu && task.engine == spec::Engine::sm && spec::is_part(task);
  work.start_us = is_kernel ? 0 : copy_start_us(machine, boxes, rows);  // a part of a kernel starts nothing
  work.flow_us = copy_flow_us(machine, static_cast<double>(work.moved_bytes), boxes, is_local);
  work.link_bytes = is_local ? 0 : work.moved_bytes;
  work.memory_bytes = is_local ? 2 * work.moved_bytes : work.moved_bytes;
  work.peer_memory_bytes = is_local ? 0 : work.moved_bytes;
  return work;
}

base::Result<Work> collective_work(const spec::Schedule& schedule, const spec::Expansion& expansion, const Instance& in,
                                   const Machine& machine) {
  const spec::Task& task = schedule.tasks[static_cast<size_t>(in.task)];
  const auto param = task.params.find("collective");
  const std::string name = param != task.params.end() && std::holds_alternative<std::string>(param->second)
                               ? std::get<std::string>(param->second)
                               : "?";
  Work work;
  const int64_t whole = bytes_of(schedule, name == "all_gather" ? in.writes[0] : in.reads[0]);
  const auto off = schedule.tables.find("off");
  const bool is_scatter = name == "reduce_scatter" && off != schedule.tables.end();
  const int apart = is_scatter ? spec::unequal_shards(off->second) : 0;
  const std::optional<double> us =
      spec::collective_us(machine, name, static_cast<double>(whole), expansion.ranks, apart);
  if (!us)
    return base::error(Errc::not_supported,
                       "{}: machine {} has no times of {} for {} ranks; wanted: a curve in its file", in.id(schedule),
                       machine.name, name, expansion.ranks);
  work.moved_bytes = bytes_of(schedule, in.writes[0]);
  work.amount = static_cast<uint64_t>(whole);
  work.load = spec::Load::sm_copy;
  work.kernels = std::max(apart, 1);
  if (whole == 0) return work;
  work.flow_us = *us;
  const int passes = name == "all_reduce" ? 2 : 1;
  work.link_bytes = whole / expansion.ranks * (expansion.ranks - 1) * passes;
  work.memory_bytes = 2 * work.link_bytes;
  return work;
}

/// Table rows are read once for each entry of a bag, at the rate of the memory; results are written once.
Work pool_work(const spec::Schedule& schedule, const Instance& in, const Machine& machine) {
  Work work;
  work.moved_bytes = bytes_of(schedule, in.writes[0]);
  if (work.moved_bytes == 0) return work;
  const spec::Task& task = schedule.tasks[static_cast<size_t>(in.task)];
  const auto entries = task.params.find("entries");
  const int64_t each = entries == task.params.end() ? 1 : std::get<int64_t>(entries->second);
  work.memory_bytes = (1 + each) * work.moved_bytes;
  work.amount = static_cast<uint64_t>(work.memory_bytes);
  work.flow_us = spec::reduce_us(machine, static_cast<double>(work.memory_bytes));
  work.kernels = 1;
  work.load = spec::Load::gather;
  return work;
}

}  // namespace

double copy_start_us(const Machine& machine, int64_t boxes, int64_t rows_of_2d) {
  return static_cast<double>(boxes) * machine.copy.start_us.value +
         static_cast<double>(rows_of_2d) * machine.copy.row_us.value;
}

double copy_flow_us(const Machine& machine, double bytes, int64_t boxes, bool is_local) {
  const spec::Machine::Copy& c = machine.copy;
  const bool is_inside = is_local && c.local_GBps.value > 0;
  const double least = us_of(bytes, is_inside ? c.local_GBps : c.peer_GBps);
  const spec::Curve& measured = is_inside ? c.local_us : c.pair_us;
  const double each = bytes / static_cast<double>(boxes);
  if (measured.empty() || each < measured.points.front()[0]) return least;
  return std::max(least, static_cast<double>(boxes) * (measured.at(each) - c.start_us.value));
}

base::Result<Work> work_of(const spec::Schedule& schedule, const spec::Expansion& expansion, const Instance& in,
                           const Machine& machine) {
  const Kind kind = schedule.tasks[static_cast<size_t>(in.task)].kind;
  if (kind == Kind::copy) return copy_work(schedule, expansion, in, machine);
  if (kind == Kind::barrier || kind == Kind::host) {
    Work work;
    work.start_us = kind == Kind::barrier ? machine.latency.barrier_us.value : 0;
    return work;
  }
  if (kind == Kind::pool) return pool_work(schedule, in, machine);
  if (in.reads.empty() || in.writes.empty()) {
    return base::error(Errc::bad_schedule, "{}: a {} with {} regions to read and {} to write; wanted: some of both",
                       in.id(schedule), spec::name_of(kind), in.reads.size(), in.writes.size());
  }
  if (kind == Kind::collective) return collective_work(schedule, expansion, in, machine);
  Work work;
  if (kind == Kind::reduce) {
    for (const std::vector<Box>& boxes : in.reads) work.memory_bytes += bytes_of(schedule, boxes);
    for (const std::vector<Box>& boxes : in.writes) work.moved_bytes += bytes_of(schedule, boxes);
    if (work.moved_bytes == 0) return Work{};
    work.memory_bytes += work.moved_bytes;
    work.amount = static_cast<uint64_t>(work.memory_bytes);
    work.flow_us = spec::reduce_us(machine, static_cast<double>(work.memory_bytes));
    work.kernels = 1;
    work.load = spec::Load::reduce;
  } else {
    work = gemm_work(schedule, expansion, in, machine);
    work.moved_bytes = spec::bytes_written(schedule, in);
    if (kind == Kind::tiles) {
      for (const Box& box : in.writes[0]) {
        if (box.rank == expansion.rank || box.empty()) continue;
        work.to = box.rank;
        work.link_bytes += bytes_of(schedule, {box});
      }
    }
  }
  return work;
}

}  // namespace overlace::sim
