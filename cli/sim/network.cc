#include "cli/sim/network.h"

#include <cmath>

#include "overlace/error.h"
#include "src/base/file.h"
#include "src/base/format.h"

namespace overlace::cli {
namespace {

using study::Network;

constexpr int kMostGpus = 4096, kPerHost = 8, kRadix = 64;

/// a x b with a >= b >= 2 as near to a square as can be.
Network torus_of(int gpus, double GBps) {
  int b = static_cast<int>(std::sqrt(gpus));
  while (b > 1 && gpus % b != 0) --b;
  if (b < 2)
    throw_error(Errc::invalid_argument, base::format("--gpus is {}, wanted a product a x b for a torus", gpus));
  return study::torus({gpus / b, b}, {GBps > 0 ? GBps : kTorusGBps, study::kNvlink.alpha_us}).value();
}

Network rail_of(int gpus, double GBps) {
  if (gpus % kPerHost != 0)
    throw_error(Errc::invalid_argument, base::format("--gpus is {}, wanted whole hosts of {}", gpus, kPerHost));
  return study::rail_fat_tree(gpus / kPerHost, kPerHost, GBps > 0 ? GBps : study::kNic.GBps, kRadix, 1).value();
}

}  // namespace

std::vector<Network> networks_of(const NetworkWords& words) {
  if (words.gpus < 0 || words.gpus > kMostGpus)
    throw_error(Errc::invalid_argument, base::format("--gpus is {}, wanted 2 to {}", words.gpus, kMostGpus));
  if (!(words.link_GBps >= 0) || words.link_GBps > study::kMostGBps)
    throw_error(Errc::invalid_argument,
                base::format("--link is {}, wanted up to {} GB/s", words.link_GBps, study::kMostGBps));
  const int gpus = words.gpus == 0 ? 128 : words.gpus;
  if (words.network == "torus") return {torus_of(gpus, words.link_GBps)};
  if (words.network == "rail") return {rail_of(gpus, words.link_GBps)};
  if (words.network == "all") return {torus_of(gpus, words.link_GBps), rail_of(gpus, words.link_GBps)};
  if (words.link_GBps > 0)
    throw_error(Errc::invalid_argument,
                base::format("--link is for torus and rail, --network is {}, which says it itself", words.network));
  Network network;
  if (words.network.ends_with(".json")) {
    base::Result<std::string> text = base::read_file(words.network);
    text.status().or_throw();
    base::Result<base::Json> json = base::Json::parse(*text, words.network);
    json.status().or_throw();
    network = study::network_from_json(*json, words.network).value();
  } else if (words.network.find('(') == std::string::npos && words.network != "nvl72") {
    throw_error(Errc::invalid_argument,
                base::format("--network is {}, wanted all, torus, rail, FILE.json or a blueprint such as ring(8, 25)",
                             words.network));
  } else {
    network = study::network_of(words.network).value();
  }
  if (words.gpus != 0 && words.gpus != network.ranks)
    throw_error(Errc::invalid_argument,
                base::format("--gpus is {}, {} has {}", words.gpus, words.network, network.ranks));
  return {std::move(network)};
}

}  // namespace overlace::cli
