#include "cli/gnn/rates.h"

#include <utility>

#include "src/base/format.h"
#include "src/base/status.h"
#include "src/io/alignment.h"

namespace overlace::cli {

using base::Json;

GnnRates rates_of(const GnnRateWords& words) {
  for (const auto& [option, value] :
       {std::pair("--compute-ms", words.compute_ms), std::pair("--link", words.link_GBps.value_or(0)),
        std::pair("--check", words.check_GBps), std::pair("--gather", words.gather_GBps)})
    if (!(value >= 0) || !(value <= 1e6))
      base::invalid_argument("{} is {}, wanted 0 to 1000000", option, value).or_throw();
  constexpr int64_t kExtentRequest = int64_t{1} << 20;
  const spec::Machine machine = spec::find_machine(words.machine);
  GnnRates out;
  out.disk = disk_rate(machine, kExtentRequest, 1);
  out.link = words.link_GBps ? HostRate{*words.link_GBps, "told"} : link_rate(machine, 0);
  out.epoch = {.extent_GBps = out.disk.GBps,
               .page_GBps = disk_rate(machine, io::kPageBytes, 0.25).GBps,
               .link_GBps = out.link.GBps,
               .compute_ms = words.compute_ms,
               .check_GBps = words.check_GBps,
               .gather_GBps = words.gather_GBps};
  return out;
}

std::string GnnRates::text() const {
  const std::string copies = link.GBps > 0 ? base::format("{:.1f} GB/s", link.GBps) : "none, rows stay on the host";
  return base::format("disk: {:.3f} GB/s, pages {:.3f} ({})\ncopies to a GPU: {} ({})\ncomputation: {} ms a batch\n",
                      disk.GBps, epoch.page_GBps, disk.origin, copies, link.origin, epoch.compute_ms);
}

void GnnRates::add_to(Json* result) const {
  result->set("disk", Json::Object{{"GBps", disk.GBps}, {"pages_GBps", epoch.page_GBps}, {"origin", disk.origin}});
  result->set("link", Json::Object{{"GBps", link.GBps}, {"origin", link.origin}});
}

}  // namespace overlace::cli
