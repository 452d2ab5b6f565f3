#include "cli/gnn/rates.h"

#include <utility>

#include "src/base/file.h"
#include "src/base/json.h"

namespace overlace::cli {
namespace {

using base::Json;

double rate_of(const Json& machine, const char* request_bytes, const std::string& path) {
  const Json* storage = machine.find("storage");
  const Json* read = storage == nullptr ? nullptr : storage->find("read_GBps");
  const Json* rate = read == nullptr ? nullptr : read->find(request_bytes);
  if (rate == nullptr || !rate->is_number())
    base::invalid_argument("{}: storage.read_GBps.{} is missing, wanted what overlace gnn diskbench --json writes",
                           path, request_bytes)
        .or_throw();
  return rate->as_double();
}

Json read_machine(const std::string& path) { return Json::parse(base::read_file(path).value(), path).value(); }

}  // namespace

double sequential_GBps(const std::string& path) { return rate_of(read_machine(path), "1048576", path); }

gnn::EpochRates rates_of(const GnnRateWords& words) {
  for (const auto& [option, value] : {std::pair("--compute-ms", words.compute_ms), std::pair("--link", words.link_GBps),
                                      std::pair("--check", words.check_GBps), std::pair("--gather", words.gather_GBps)})
    if (!(value >= 0) || !(value <= 1e6))
      base::invalid_argument("{} is {}, wanted 0 to 1000000", option, value).or_throw();
  gnn::EpochRates rates{.extent_GBps = 1,
                        .page_GBps = 0.25,
                        .link_GBps = words.link_GBps,
                        .compute_ms = words.compute_ms,
                        .check_GBps = words.check_GBps,
                        .gather_GBps = words.gather_GBps};
  if (words.machine.empty()) return rates;
  const Json machine = read_machine(words.machine);
  rates.extent_GBps = rate_of(machine, "1048576", words.machine);
  rates.page_GBps = rate_of(machine, "4096", words.machine);
  return rates;
}

}  // namespace overlace::cli
