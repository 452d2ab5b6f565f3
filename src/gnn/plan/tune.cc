#include "src/gnn/plan/tune.h"

#include <algorithm>
#include <tuple>

#include "src/gnn/parallel.h"

namespace overlace::gnn {
namespace {

/// One candidate on one rank's share.
base::Status tune_rank(const InputTrace& trace, const EpochRates& rates, Tuned* out) {
  auto fitted = fit(trace, out->request);
  if (!fitted.ok()) {
    if (out->refused.empty()) out->refused = fitted.status().message();
    return {};
  }
  const auto time = pipeline_time(item_times(*fitted, rates), fitted->options.depth);
  if (!time.ok()) return time.status();
  out->bytes_read += fitted->bytes_read;
  out->bytes_on_disk += fitted->bytes_on_disk;
  if (time->us < out->time.us) return {};
  out->time = *time;
  out->bound = bound_of(*fitted, trace.num_batches(), rates);
  out->prediction = std::move(*fitted);
  return {};
}

}  // namespace

double EpochBound::seconds() const { return std::max({disk_s, link_s, compute_s}); }

const char* EpochBound::binds() const {
  if (disk_s == seconds()) return "disk";
  return link_s == seconds() ? "link" : "compute";
}

EpochBound bound_of(const Prediction& prediction, int64_t num_batches, const EpochRates& rates) {
  const int64_t pages = prediction.plan.bytes.pages;
  const auto seconds = [](int64_t bytes, double gbps) { return static_cast<double>(bytes) / (gbps * 1e9); };
  EpochBound bound;
  bound.disk_s = seconds(prediction.bytes_read - pages, rates.extent_GBps) + seconds(pages, rates.page_GBps);
  if (rates.link_GBps > 0) bound.link_s = seconds(prediction.bytes_to_gpu, rates.link_GBps);
  bound.compute_s = rates.compute_ms * 1e-3 * static_cast<double>(num_batches);
  return bound;
}

base::Result<std::vector<Tuned>> tune(std::span<const InputTrace* const> ranks,
                                      const std::vector<FitRequest>& candidates, const EpochRates& rates, int threads) {
  OVERLACE_TRY(check(rates));
  if (candidates.empty()) return base::invalid_argument("tune: no candidates, wanted at least one");
  if (ranks.empty()) return base::invalid_argument("tune: no ranks, wanted at least one");
  std::vector<Tuned> out(candidates.size());
  const base::Status done = parallel_each(std::ssize(candidates), threads, [&](int64_t i, int) {
    Tuned& tuned = out[static_cast<size_t>(i)];
    tuned.request = candidates[static_cast<size_t>(i)];
    for (const InputTrace* rank : ranks) OVERLACE_TRY(tune_rank(*rank, rates, &tuned));
    return base::Status();
  });
  if (!done.ok()) return done;
  std::stable_sort(out.begin(), out.end(), [](const Tuned& a, const Tuned& b) {
    const auto key = [](const Tuned& t) { return std::tuple(!t.refused.empty(), t.time.us, t.bytes_read); };
    return key(a) < key(b);
  });
  return out;
}

base::Result<std::vector<Tuned>> tune(const InputTrace& trace, const std::vector<FitRequest>& candidates,
                                      const EpochRates& rates, int threads) {
  const InputTrace* one[] = {&trace};
  return tune(one, candidates, rates, threads);
}

std::vector<FitRequest> candidates_of(const FitRequest& base, int64_t num_batches) {
  std::vector<OrderChoice> orders = {{BatchOrder::fixed, 0}};
  for (const int64_t length : {128, 256, 512, 1024})
    if (2 * length <= num_batches) orders.push_back({BatchOrder::segments, length});
  orders.push_back({BatchOrder::shuffle, 0});
  std::vector<int64_t> pages = {base.options.disk.page_bytes};
  if (base.disk_bytes > 0) pages = {4096, 16384};
  std::vector<FitRequest> out;
  for (const OrderChoice order : orders)
    for (const int depth : {2, 3, 4})
      for (const int64_t page : pages) {
        FitRequest candidate = base;
        candidate.is_automatic_order = false;
        candidate.options.order = order;
        candidate.options.depth = depth;
        candidate.options.disk.page_bytes = page;
        if (order.order == BatchOrder::shuffle) candidate.options.policy = CachePolicy::hottest;
        out.push_back(std::move(candidate));
      }
  return out;
}

}  // namespace overlace::gnn
