#include "src/gnn/plan/tune.h"

#include <algorithm>
#include <tuple>

#include "src/gnn/parallel.h"

namespace overlace::gnn {
namespace {

base::Status check(const EpochRates& rates) {
  const auto positive = [](const char* name, double rate) {
    return rate > 0 ? base::Status() : base::invalid_argument("{} is {}, wanted more than 0", name, rate);
  };
  OVERLACE_TRY(positive("extent_GBps", rates.extent_GBps));
  OVERLACE_TRY(positive("page_GBps", rates.page_GBps));
  if (!(rates.link_GBps >= 0)) return base::invalid_argument("link_GBps is {}, wanted at least 0", rates.link_GBps);
  if (!(rates.compute_ms >= 0)) return base::invalid_argument("compute_ms is {}, wanted at least 0", rates.compute_ms);
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

base::Result<std::vector<Tuned>> tune(const InputTrace& trace, const std::vector<FitRequest>& candidates,
                                      const EpochRates& rates, int threads) {
  OVERLACE_TRY(check(rates));
  if (candidates.empty()) return base::invalid_argument("tune: no candidates, wanted at least one");
  std::vector<Tuned> out(candidates.size());
  OVERLACE_TRY(parallel_each(std::ssize(candidates), threads, [&](int64_t i, int) {
    Tuned& tuned = out[static_cast<size_t>(i)];
    tuned.request = candidates[static_cast<size_t>(i)];
    auto fitted = fit(trace, tuned.request);
    if (fitted.ok()) {
      tuned.prediction = std::move(*fitted);
      tuned.bound = bound_of(tuned.prediction, trace.num_batches(), rates);
    } else {
      tuned.refused = fitted.status().message();
    }
    return base::Status();
  }));
  std::stable_sort(out.begin(), out.end(), [](const Tuned& a, const Tuned& b) {
    const auto key = [](const Tuned& t) {
      return std::tuple(!t.refused.empty(), t.bound.seconds(), t.prediction.bytes_read);
    };
    return key(a) < key(b);
  });
  return out;
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
