#include "cli/calibrate/points.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <string>

#include "src/exec/run.h"
#include "src/spec/operators.h"

namespace overlace::cli {
namespace {

constexpr int64_t kKi = 1024, kMi = 1024 * kKi;
constexpr int kMostItems = 256, kFewItems = 32, kFewCollectives = 8;
constexpr int kLeadSums = 2, kLongLeadSums = 8;  // a collective takes long to queue
constexpr double kShareBeside = 0.7;             // of the longer of two: the other ends surely before it
constexpr int kMostDegree = 4;
constexpr int64_t kSlack = 8 * kMi, kGpuSlack = 512 * kMi;
constexpr uint64_t kMostGroupBytes = uint64_t{2048} * kMi;  // of the symmetric heap

struct Shape {
  int64_t m, n, k;
};
// A few ms at most: on a machine that does other things too, only short ones are ever alone.
constexpr Shape kCpuShapes[] = {{32, 256, 256},  {64, 256, 256},   {64, 512, 512},   {96, 384, 768},
                                {128, 512, 256}, {256, 256, 256},  {128, 128, 1024}, {256, 512, 256},
                                {256, 256, 512}, {128, 1024, 512}, {256, 512, 512},  {512, 512, 512}};
// Layers of Llama-3.1-70B on four GPUs, and squares.
constexpr Shape kGpuShapes[] = {{256, 2560, 8192},  {512, 2560, 8192},  {512, 8192, 2048},  {1024, 2560, 2048},
                                {1024, 2560, 8192}, {1024, 8192, 2048}, {1024, 8192, 7168}, {2048, 2560, 2048},
                                {2048, 2560, 8192}, {2048, 8192, 2048}, {2048, 8192, 7168}, {4096, 2560, 8192},
                                {4096, 4096, 4096}, {4096, 8192, 2048}, {4096, 8192, 7168}, {8192, 2560, 2048},
                                {8192, 2048, 2048}, {8192, 2560, 8192}, {8192, 8192, 2048}, {8192, 8192, 8192}};
constexpr Shape kCpuBeside = {256, 512, 512}, kGpuBeside = {4096, 8192, 7168};
constexpr Shape kCpuProblems[] = {{128, 256, 512}, {256, 512, 256}, {256, 512, 512}};
constexpr Shape kGpuProblems[] = {{2048, 2560, 8192}, {8192, 8192, 2048}, {8192, 2560, 8192}};

/// Items of a call: as many as move `most` bytes together. GPUs: few enough to be queued while the lead runs.
int items(const PointOptions& o, int64_t bytes, int64_t most) {
  return static_cast<int>(std::clamp<int64_t>(most / bytes, 1, o.is_gpu ? kFewItems : kMostItems));
}

std::vector<int64_t> doubling(int64_t first, int64_t last, int64_t factor) {
  std::vector<int64_t> out;
  for (int64_t bytes = first; bytes <= last; bytes *= factor) out.push_back(bytes);
  return out;
}

/// One and a half of each as well: where caches end and protocols change no straight line goes through.
std::vector<int64_t> denser(int64_t first, int64_t last) {
  std::vector<int64_t> out;
  for (const int64_t bytes : doubling(first, last, 2)) {
    out.push_back(bytes);
    if (bytes / 2 * 3 <= last) out.push_back(bytes / 2 * 3);
  }
  return out;
}

/// Copies on CPU ranks: what operators of a few ms send, within caches.
std::vector<int64_t> cpu_sizes() { return denser(32 * kKi, 768 * kKi); }

void append(std::vector<Point>* to, std::vector<Point> sweep, bool holds_out = true) {
  if (holds_out) hold_out(&sweep);
  to->insert(to->end(), std::make_move_iterator(sweep.begin()), std::make_move_iterator(sweep.end()));
}

Point point(const PointOptions& o, Probe probe, int count, spec::Schedule schedule, double bytes = 0) {
  Point out;
  out.probe = probe;
  out.bytes = bytes;
  out.count = count;
  out.percentile = o.is_gpu ? 50 : 0;  // cores are shared with whatever else runs, which only adds time
  out.schedule = std::move(schedule);
  return out;
}

/// Makes `p` a point of work that all ranks do.
Point together(const PointOptions& o, Point p) {
  if (o.is_gpu || o.ranks < 2) return p;
  add_barrier(&p.schedule);
  p.has_barrier = true;
  return p;
}

/// GPUs: `p` behind work that takes longer than `p` takes to be queued.
Point led(const PointOptions& o, Point p, int sums = kLeadSums) {
  if (!o.is_gpu) return p;
  put_behind_lead(&p.schedule, sums);
  p.lead = sums;
  return p;
}

spec::GemmWork gemm_of_shape(const Shape& shape, DType dtype) {
  const auto element = static_cast<int64_t>(dtype_bytes(dtype));
  return {shape.m, shape.n, shape.k, 1, element, element};
}

void add_copies(const PointOptions& o, std::vector<Point>* out) {
  const std::vector<int64_t> sizes = o.is_gpu ? doubling(64 * kKi, 128 * kMi, 2) : cpu_sizes();
  const int64_t most = o.is_gpu ? 64 * kMi : 16 * kMi;  // CPU ranks: long against the barrier behind them
  const auto sweep = [&](Probe probe, CopyWay way, const std::vector<int64_t>& list_of, int64_t together_bytes) {
    std::vector<Point> list;
    for (const int64_t bytes : list_of) {
      const int count = items(o, bytes, together_bytes);
      Point p = led(o, point(o, probe, count, copy_probe(o.ranks, way, bytes, count), static_cast<double>(bytes)));
      list.push_back(way == CopyWay::pair ? std::move(p) : together(o, std::move(p)));
    }
    append(out, std::move(list));
  };
  if (o.ranks > 1) {
    sweep(Probe::pair, CopyWay::pair, sizes, most);
    sweep(Probe::all, CopyWay::all, sizes, most);
    const auto add = [&](Probe probe, CopyWay way, int64_t bytes, int count, int64_t rows, bool has_posts) {
      out->push_back(led(o, point(o, probe, count, copy_probe(o.ranks, way, bytes, count, rows, has_posts),
                                  static_cast<double>(bytes))));
      out->back().rows = rows;
    };
    const int64_t small = sizes.front(), large = sizes[sizes.size() - 3];
    add(Probe::ring, CopyWay::ring, large, items(o, large, most), 1, false);
    out->back() = together(o, std::move(out->back()));
    if (o.is_gpu) add(Probe::fork, CopyWay::pair, small, 1, 1, false);
    add(Probe::post, CopyWay::pair, small, kFewItems, 1, true);
    add(Probe::rows, CopyWay::pair, 256 * kKi, o.is_gpu ? 16 : 4, 256, false);
  }
  // GPUs: many times as fast.
  sweep(Probe::local, CopyWay::local, o.is_gpu ? denser(64 * kKi, 128 * kMi) : sizes, o.is_gpu ? 8 * most : most);
}

/// Between every two of a few ranks.
void add_links(const PointOptions& o, std::vector<Point>* out) {
  constexpr int kMostLinkedRanks = 8;
  if (o.ranks > kMostLinkedRanks) return;
  const int64_t bytes = o.is_gpu ? 16 * kMi : 256 * kKi;
  const int count = o.is_gpu ? 4 : kFewItems;
  for (int from = 0; from < o.ranks; ++from) {
    for (int to = 0; to < o.ranks; ++to) {
      if (from == to) continue;
      out->push_back(led(
          o, point(o, Probe::link, count, link_probe(o.ranks, from, to, bytes, count), static_cast<double>(bytes))));
      out->back().from = from;
      out->back().to = to;
      out->back().is_held_out = true;
    }
  }
}

/// All ranks at once, each to the next: what more and more SMs reach. One core does it on CPU ranks.
void add_pushes(const PointOptions& o, std::vector<Point>* out) {
  const auto sweep = [&](Probe probe, const std::vector<int>& ctas) {
    std::vector<Point> list;
    for (const int n : ctas) {
      const int64_t bytes = o.is_gpu ? std::min<int64_t>(32 * kMi * n, 256 * kMi) : kMi;
      list.push_back(point(o, probe, 1, {}, static_cast<double>(bytes)));
      list.back().ctas = n;
    }
    append(out, std::move(list));
  };
  if (!o.is_gpu) return sweep(Probe::store, {1});
  std::vector<int> ctas = {1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96};
  std::erase_if(ctas, [&](int n) { return n >= o.sms; });
  ctas.push_back(std::max(o.sms, 1));
  sweep(Probe::store, ctas);
  if (o.has_tma) sweep(Probe::tma, ctas);
  sweep(Probe::memory, {o.sms, 2 * o.sms});
}

void add_collectives(const PointOptions& o, std::vector<Point>* out) {
  if (!o.has_collectives || o.ranks < 2) return;
  const std::vector<int64_t> sizes = o.is_gpu ? denser(64 * kKi, 256 * kMi) : cpu_sizes();
  for (const auto& [probe, name] : {std::pair{Probe::all_gather, "all_gather"},
                                    {Probe::reduce_scatter, "reduce_scatter"},
                                    {Probe::all_reduce, "all_reduce"},
                                    {Probe::all_to_all, "all_to_all"}}) {
    std::vector<Point> list;
    for (const int64_t bytes : sizes) {
      const int count =
          std::min(items(o, bytes, o.is_gpu ? 64 * kMi : 8 * kMi), o.is_gpu ? kFewCollectives : kFewItems);
      list.push_back(
          led(o, point(o, probe, count, collective_probe(o.ranks, name, bytes, count), static_cast<double>(bytes)),
              kLongLeadSums));
    }
    append(out, std::move(list));
  }
}

const Point* find_point(const std::vector<Point>& list, Probe probe, const Shape& shape) {
  const auto found = std::find_if(list.begin(), list.end(), [&](const Point& p) {
    return p.probe == probe &&
           (probe != Probe::gemm || (p.gemm.m == shape.m && p.gemm.n == shape.n && p.gemm.k == shape.k));
  });
  return found == list.end() ? nullptr : &*found;
}

const Point* find_point(const std::vector<Point>& list, Probe probe, int64_t bytes) {
  const auto found = std::find_if(list.begin(), list.end(), [&](const Point& p) {
    return p.probe == probe && p.bytes == static_cast<double>(bytes);
  });
  return found == list.end() ? nullptr : &*found;
}

uint64_t heap_bytes_of(const Point& p, int ranks) {
  return is_push(p.probe) ? 0 : exec::footprint(p.schedule, 0, ranks).value().heap_bytes;
}

int at_least_one(double count) { return std::max(static_cast<int>(count), 1); }

}  // namespace

size_t argument_bytes(bool is_gpu) { return static_cast<size_t>(is_gpu ? 512 * kMi : 8 * kMi); }

size_t symmetric_bytes(const PointOptions& o, const spec::Machine& machine) {
  std::vector<std::vector<Point>> groups = operator_points(o, machine);
  groups.push_back(basic_points(o));
  uint64_t sum = 0, most = 0;
  for (const std::vector<Point>& group : groups) {
    uint64_t bytes = 0;
    for (const Point& p : group) bytes += heap_bytes_of(p, o.ranks);
    sum += bytes;
    most = std::max(most, bytes);
  }
  // GPUs: what does not fit beside the group that is timed gives way to it, and leaves gaps.
  if (o.is_gpu) return most + most / 4 + static_cast<size_t>(kGpuSlack);
  return sum + static_cast<size_t>(kSlack + o.ranks * kMi);  // of each rank: copies beside other work
}

std::vector<Point> basic_points(const PointOptions& o) {
  std::vector<Point> out;
  for (const int sums : {kLeadSums, kLongLeadSums})
    if (o.is_gpu) out.push_back(point(o, Probe::lead, sums, lead_probe(o.ranks, sums)));
  const int chain = o.is_gpu ? kFewItems : 65, in_turn = o.is_gpu ? kFewItems : 64;
  if (!o.is_gpu) out.push_back(point(o, Probe::call, 1, reduce_probe(o.ranks, kTinyReduce, 1)));
  out.push_back(led(o, point(o, Probe::chain, chain, reduce_probe(o.ranks, kTinyReduce, chain))));
  std::vector<Point> sums;
  for (const int64_t elements : o.is_gpu ? denser(256 * kKi, 64 * kMi) : doubling(2 * kKi, 128 * kKi, 2)) {
    const int64_t bytes = 3 * 4 * elements;
    const int count = items(o, bytes, o.is_gpu ? 4096 * kMi : 8 * kMi);
    sums.push_back(together(
        o, led(o, point(o, Probe::reduce, count, reduce_probe(o.ranks, bytes, count), static_cast<double>(bytes)))));
  }
  append(&out, std::move(sums));
  std::vector<Point> products;
  const auto add = [&](const Shape& shape) {
    const spec::GemmWork work = gemm_of_shape(shape, o.dtype);
    const int count = o.is_gpu ? 4 : 1;
    products.push_back(together(o, point(o, Probe::gemm, count, gemm_probe(o.ranks, o.dtype, work, count))));
    products.back().gemm = work;
  };
  if (o.is_gpu) std::for_each(std::begin(kGpuShapes), std::end(kGpuShapes), add);
  if (!o.is_gpu) std::for_each(std::begin(kCpuShapes), std::end(kCpuShapes), add);
  append(&out, std::move(products));
  add_copies(o, &out);
  if (o.ranks > 1) {
    constexpr int kTurns = 16;
    out.push_back(led(o, point(o, Probe::signal, in_turn, reduce_probe(o.ranks, kTinyReduce, in_turn, true))));
    out.push_back(led(o, point(o, Probe::wait, in_turn, wait_probe(o.ranks, in_turn))));
    out.push_back(led(o, point(o, Probe::flag, kTurns, flag_probe(o.ranks, kTurns))));
    // GPUs: exec has no barrier tasks there.
    if (!o.is_gpu) out.push_back(point(o, Probe::barrier, kTurns, barrier_probe(o.ranks, kTurns)));
  }
  constexpr int kPairs = 16;
  out.push_back(led(o, point(o, Probe::event, kPairs, event_probe(o.ranks, kPairs))));
  add_collectives(o, &out);
  if (o.ranks > 1) {
    add_links(o, &out);
    add_pushes(o, &out);
  }
  return out;
}

std::vector<Point> duty_points(const PointOptions& o) {
  std::vector<Point> out;
  const Shape shape = o.is_gpu ? kGpuBeside : kCpuBeside;
  constexpr int kProducts = 4;
  for (const double share : {0.25, 0.5, 0.75, 1.0}) {
    const spec::GemmWork work = gemm_of_shape(shape, o.dtype);
    out.push_back(point(o, Probe::duty, kProducts, gemm_probe(o.ranks, o.dtype, work, kProducts)));
    out.back().gemm = work;
    out.back().share = share;
  }
  return out;
}

std::vector<Point> host_points(const PointOptions& o) {
  std::vector<Point> out;
  if (!o.is_gpu) return out;
  out.push_back(point(o, Probe::host_call, 1, reduce_probe(o.ranks, kTinyReduce, 1)));
  constexpr int kChain = 65;
  out.push_back(point(o, Probe::host_chain, kChain, reduce_probe(o.ranks, kTinyReduce, kChain)));
  if (o.ranks > 1)  // each with its signal, which is a copy too
    out.push_back(point(o, Probe::host_copies, 2 * kFewItems,
                        copy_probe(o.ranks, CopyWay::ring, 64 * kKi, kFewItems, 1, /*has_posts=*/true)));
  if (o.ranks > 1 && o.has_collectives) {
    constexpr int kCollectives = 4;
    out.push_back(
        point(o, Probe::host_collective, kCollectives, collective_probe(o.ranks, "all_gather", kMi, kCollectives)));
  }
  return out;
}

std::vector<Point> contention_points(const PointOptions& o, const std::vector<Point>& basic) {
  std::vector<Point> out;
  if (o.ranks < 2) return out;
  const Shape shape = o.is_gpu ? kGpuBeside : kCpuBeside;
  const int64_t bytes = o.is_gpu ? 16 * kMi : 256 * kKi;
  const Point *gemm = find_point(basic, Probe::gemm, shape), *pair = find_point(basic, Probe::pair, bytes);
  const Point *all = find_point(basic, Probe::all, bytes), *sum = find_point(basic, Probe::reduce, 3 * bytes);
  if (gemm == nullptr || pair == nullptr || all == nullptr || sum == nullptr) return out;
  const Point* lead = o.is_gpu ? find_point(basic, Probe::lead, Shape{}) : nullptr;
  const auto item_us = [&](const Point* p) {
    return std::max(p->us() - (p->lead > 0 && lead != nullptr ? lead->us() : 0), 1e-3) / p->count;
  };
  const double gemm_us = item_us(gemm), pair_us = item_us(pair), all_us = item_us(all), sum_us = item_us(sum);
  const auto beside = [&](Probe probe, spec::Schedule work, int count, int copies, bool is_own) {
    add_copies_beside(&work, bytes, copies, is_own);
    Point p = point(o, probe, count, std::move(work), static_cast<double>(bytes));
    p.copies = copies;
    if (probe == Probe::reduce_in) {
      p.work_bytes = sum->bytes;
    } else {
      p.gemm = gemm->gemm;
    }
    out.push_back(std::move(p));
  };
  const auto products = [&](int count) { return gemm_probe(o.ranks, o.dtype, gemm->gemm, count); };
  constexpr int kProducts = 2;
  const double work_us = kProducts * gemm_us;
  beside(Probe::gemm_in, on_first_rank(products(kProducts)), kProducts, at_least_one(kShareBeside * work_us / pair_us),
         false);
  const int sums = at_least_one(work_us / sum_us);
  beside(Probe::reduce_in, on_first_rank(reduce_probe(o.ranks, 3 * bytes, sums)), sums,
         at_least_one(kShareBeside * sums * sum_us / pair_us), false);
  if (!o.is_gpu) return out;  // CPU ranks: one thread does both, one after the other
  beside(Probe::gemm_out, products(kProducts), kProducts, at_least_one(kShareBeside * work_us / all_us), true);
  beside(Probe::copy_out, products(kProducts), kProducts, at_least_one(work_us / kShareBeside / all_us) + 1, true);
  return out;
}

std::vector<std::vector<Point>> operator_points(const PointOptions& o, const spec::Machine& machine) {
  std::vector<std::vector<Point>> out;
  if (o.ranks < 2) return out;
  const auto add = [&](const std::string& name, const Shape& shape) {
    spec::OpSpec op;
    op.op = name;
    op.m = shape.m;
    op.n = shape.n;
    op.k = shape.k;
    op.ranks = o.ranks;
    op.dtype = op.out_dtype = o.dtype;
    out.emplace_back();
    uint64_t heap_bytes = 0;
    for (const plan::Candidate& candidate : plan::candidates(op, machine)) {
      const bool is_fine =
          candidate.degree > kMostDegree && spec::form_of(op.op, candidate.family) != spec::ClosedForm::tile_kernel;
      if (is_fine || (candidate.family == spec::kLibrary && !o.has_collectives)) continue;
      Point p = point(o, Probe::operators, 1, spec::make_schedule(op, candidate.family, candidate.degree));
      p.op = op;
      p.candidate = candidate;
      const uint64_t more = heap_bytes_of(p, o.ranks);
      if (o.is_gpu && heap_bytes > 0 && heap_bytes + more > kMostGroupBytes) {
        out.emplace_back();
        heap_bytes = 0;
      }
      heap_bytes += more;
      out.back().push_back(std::move(p));
    }
  };
  for (const spec::OperatorDef* op : spec::operators()) {
    if (op->flow.sums_rows || !op->fields.empty()) continue;  // it goes by the model alone
    const std::string name(op->name);
    if (o.is_gpu)
      std::for_each(std::begin(kGpuProblems), std::end(kGpuProblems), [&](const Shape& s) { add(name, s); });
    if (!o.is_gpu)
      std::for_each(std::begin(kCpuProblems), std::end(kCpuProblems), [&](const Shape& s) { add(name, s); });
  }
  return out;
}

}  // namespace overlace::cli
