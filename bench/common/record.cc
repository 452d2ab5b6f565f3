#include "bench/common/record.h"

#include <algorithm>
#include <ctime>

#include "src/base/statistics.h"

namespace overlace::bench {

using base::Json;

std::string utc_now() {
  const std::time_t now = std::time(nullptr);
  char text[32] = {};
  std::tm parts{};
  ::gmtime_r(&now, &parts);
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text;
}

Json time_json(const std::vector<double>& samples_us) {
  Json all = Json::array();
  for (const double one : samples_us) all.push_back(one);
  Json time = Json::object();
  time.set("median", base::median(samples_us)).set("p10", base::percentile(samples_us, 10));
  time.set("p90", base::percentile(samples_us, 90));
  time.set("min", *std::min_element(samples_us.begin(), samples_us.end()));
  return time.set("samples", all);
}

}  // namespace overlace::bench
