// A topology as text or as a JSON graph, and a table of published numbers; by the first byte.
// Sources: src/study/network src/study/validate/golden
#include "src/base/json.h"
#include "src/study/network/collectives.h"
#include "src/study/validate/golden.h"
#include "tests/fuzz/fuzz.h"

namespace overlace::fuzz {
namespace {

/// Every way that the router gives must hang together, and a small collective must end within its bound.
void use(const study::Network& network) {
  study::Router router(network);
  std::vector<uint32_t> links;
  for (int from = 0; from < network.ranks && from < 3; ++from) {
    const int to = network.ranks - 1;
    router.path(from, to, &links);
    int at = from;
    for (const uint32_t link : links) {
      FUZZ_REQUIRE(network.links.at(link).from == at);
      at = network.links[link].to;
    }
    FUZZ_REQUIRE(at == to);
  }
  if (network.ranks < 2 || network.ranks > 16) return;
  for (const study::Collective op : {study::Collective::all_gather, study::Collective::all_to_all}) {
    const auto time = study::best_collective(op, network, 1 << 10);
    FUZZ_REQUIRE(time.ok());
  }
}

}  // namespace

void run(std::string_view input) {
  if (input.empty()) return;
  const char kind = input.front();
  input.remove_prefix(1);
  accepted([&] {
    if (kind == 't') return use(study::network_of(input).value());
    if (kind == 'j') return use(study::network_from_json(base::Json::parse(input).value(), "fuzz").value());
    const study::Golden golden = study::Golden::parse(input, "fuzz").value();
    for (size_t row = 0; row < golden.rows(); ++row) {
      (void)golden.has(row, "us");
      (void)golden.integer(row, "us");
    }
  });
}

}  // namespace overlace::fuzz
