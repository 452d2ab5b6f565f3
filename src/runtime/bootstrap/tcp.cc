#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>

#include "src/runtime/bootstrap/remote.h"
#include "src/runtime/bootstrap/serving.h"
#include "src/runtime/bootstrap/socket.h"
#include "src/runtime/clock.h"
#include "src/runtime/hash.h"

namespace overlace::runtime {
namespace {

constexpr int kPorts = 16, kFirst = 20000, kRange = 12000;  // below what kernels give to who asks for any port
constexpr int64_t kAnswerMs = 2000;                         // of who listens on one of the ports
constexpr int kRetryUs = 20000;

std::string address(const std::string& host, int port) { return base::format("{}{}:{}", kTcp, host, port); }

base::Result<std::unique_ptr<Bootstrap>> serve(const std::string& job, const std::string& token, int size,
                                               int64_t timeout_ms) {
  base::Status why;
  for (int port = first_port(job); port < first_port(job) + kPorts; ++port) {
    base::Result<std::unique_ptr<RelayServer>> server = RelayServer::open(address("*", port), token, size);
    why = server.status();
    if (!server.ok()) continue;
    auto bootstrap = std::make_unique<ServingBootstrap>(std::move(*server));
    OVERLACE_TRY(bootstrap->join(address("127.0.0.1", port), token, size, timeout_ms));
    return std::unique_ptr<Bootstrap>(std::move(bootstrap));
  }
  return why;
}

}  // namespace

int first_port(const std::string& job) {
  return kFirst + static_cast<int>(hash_text(job) % static_cast<uint64_t>(kRange / kPorts)) * kPorts;
}

base::Result<std::unique_ptr<Bootstrap>> tcp_bootstrap(const std::string& host, const std::string& job, int rank,
                                                       int size, int64_t timeout_ms) {
  const std::string token = base::format("{:016x}", hash_text(job));
  if (rank == 0) return serve(job, token, size, timeout_ms);
  const int64_t deadline_ns = now_ns() + timeout_ms * 1000000;
  base::Status why;
  do {
    for (int port = first_port(job); port < first_port(job) + kPorts; ++port) {
      const std::string name = address(host, port);
      if (!connect_to(name, SOCK_STREAM, 0).ok()) continue;
      base::Result<std::unique_ptr<Bootstrap>> bootstrap =
          relay_bootstrap(name, token, rank, size, std::min(timeout_ms, kAnswerMs), "rank 0");
      if (bootstrap.ok()) return bootstrap;
      why = bootstrap.status();
    }
    ::usleep(kRetryUs);
  } while (now_ns() < deadline_ns);
  return base::error(Errc::bootstrap,
                     "bootstrap: rank {} of {} did not find rank 0 on {} (ports {} to {}) within {:.1f} s{}", rank,
                     size, host, first_port(job), first_port(job) + kPorts - 1, static_cast<double>(timeout_ms) * 1e-3,
                     why.ok() ? std::string() : "; " + why.message());
}

}  // namespace overlace::runtime
