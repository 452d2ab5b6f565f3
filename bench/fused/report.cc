#include <algorithm>
#include <cstdio>

#include "bench/common/record.h"
#include "bench/fused/table.h"
#include "src/base/file.h"
#include "src/base/json.h"
#include "src/base/statistics.h"
#include "src/spec/families/families.h"

namespace overlace::bench {
namespace {

using base::Json;

double median_of(const Outcome& outcome, const char* name) {
  for (const Timed& v : outcome.variants) {
    if (v.name == name && !v.us.empty()) return base::median(v.us);
  }
  return 0;
}

/// T_lim as far as this bench knows it.
double limit_of(const Outcome& outcome) {
  const double vendor = median_of(outcome, "limit cublas"), own = median_of(outcome, "limit gemm_core");
  return vendor > 0 && own > 0 ? std::min(vendor, own) : std::max(vendor, own);
}

}  // namespace

std::string title(const Case& c) { return base::format("{} {}x{}x{} {}", c.name, c.m, c.n, c.k, c.instance); }

void print(const Outcome& outcome) {
  const Case& c = outcome.of;
  const double limit = limit_of(outcome), library = median_of(outcome, "library");
  std::printf("%s\n", title(c).c_str());
  for (const Timed& v : outcome.variants) {
    if (v.us.empty()) {
      if (v.is_wrong)
        std::printf("  %-34s wrong by intent, not verified\n", v.name.c_str());
      else
        std::printf("  %-34s verified, error %.4f of rms\n", v.name.c_str(), v.max_error);
      continue;
    }
    const double us = base::median(v.us);
    std::printf("  %-34s %8.1f us  %8.1f..%-8.1f  rho %.3f  x library %.3f  %6.1f TF/s  host %.1f us%s\n",
                v.name.c_str(), us, base::percentile(v.us, 0), base::percentile(v.us, 100), limit > 0 ? us / limit : 0,
                library / us, 2e-6 * static_cast<double>(c.m * c.n * c.k) / us, v.host_us,
                v.host_us > 0.9 * us ? " (host-bound)" : "");
  }
  std::fflush(stdout);
}

void save(const std::vector<Outcome>& outcomes, const Options& options) {
  Json rows = Json::array();
  for (const Outcome& outcome : outcomes) {
    const Case& c = outcome.of;
    Json row = Json::object();
    row.set("op", (c.op == Op::ag ? spec::kAgGemm : spec::kGemmRs).name)
        .set("row", c.name)
        .set("m", c.m)
        .set("n", c.n)
        .set("k", c.k)
        .set("instance", c.instance)
        .set("ranks", options.ranks)
        .set("shared_gpu", options.shared);
    row.set("limit_us", limit_of(outcome)).set("library_us", median_of(outcome, "library"));
    Json variants = Json::array();
    for (const Timed& v : outcome.variants) {
      Json one = Json::object();
      one.set("name", v.name)
          .set("max_error", v.max_error)
          .set("host_us", v.host_us)
          .set("wrong_by_intent", v.is_wrong);
      if (!v.us.empty()) one.set("time_us", time_json(v.us));
      variants.push_back(std::move(one));
    }
    row.set("variants", std::move(variants));
    rows.push_back(std::move(row));
  }
  base::write_file(options.out, rows.dump(1)).or_throw();
}

}  // namespace overlace::bench
