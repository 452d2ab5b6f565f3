#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>

#include "src/runtime/bootstrap/doors.h"
#include "src/runtime/bootstrap/remote.h"
#include "src/runtime/bootstrap/secret.h"
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

/// The secret, and for which job.
std::string token_of(const TcpMeeting& meeting) {
  return base::format("{} {:016x}", meeting.secret, hash_text(meeting.job));
}

base::Result<std::unique_ptr<Bootstrap>> serve(const TcpMeeting& meeting, int size, int64_t timeout_ms) {
  const base::Result<std::string> host = address_to_serve(meeting.host, meeting.listen);
  if (!host.ok()) return host.status();
  const std::string token = token_of(meeting);
  const int64_t deadline_ns = now_ns() + timeout_ms * 1000000;
  base::Status why;
  for (int port = first_port(meeting.job); port < first_port(meeting.job) + kPorts; ++port) {
    base::Result<std::unique_ptr<RelayServer>> server = RelayServer::open(address(*host, port), token, size);
    why = server.status();
    if (!server.ok()) continue;
    auto bootstrap = std::make_unique<ServingBootstrap>(std::move(*server));
    const std::string own = *host == "*" ? "127.0.0.1" : *host;
    // Strangers may take the places of those who have not been heard yet, this rank's too.
    do {
      why = bootstrap->join(address(own, port), token, size, timeout_ms);
      if (why.ok()) return std::unique_ptr<Bootstrap>(std::move(bootstrap));
    } while (now_ns() < deadline_ns);
    return why;
  }
  return base::error(Errc::bootstrap,
                     "{}; rank 0 listens on the address that MASTER_ADDR (\"{}\") names, wanted one of its host, or "
                     "OVERLACE_LISTEN set to an address or interface of it, or to any",
                     why.message(), meeting.host);
}

/// One attempt at each port. The reason of the last refusal.
base::Result<std::unique_ptr<Bootstrap>> look_for_rank_0(const TcpMeeting& meeting, int rank, int size,
                                                         int64_t timeout_ms) {
  base::Status why = base::error(Errc::bootstrap, "nobody listens");
  for (const std::string& host : addresses_to_try(meeting.host)) {
    for (int port = first_port(meeting.job); port < first_port(meeting.job) + kPorts; ++port) {
      const std::string name = address(host, port);
      base::Result<UniqueFd> fd = connect_to(name, SOCK_STREAM, 0);
      if (!fd.ok()) continue;
      base::Result<std::unique_ptr<Bootstrap>> bootstrap =
          join_relay(std::move(*fd), name, token_of(meeting), rank, size,
                     now_ns() + std::min(timeout_ms, kAnswerMs) * 1000000, "rank 0");
      if (bootstrap.ok()) return bootstrap;
      why = bootstrap.status();
    }
  }
  return why;
}

}  // namespace

int first_port(const std::string& job) {
  return kFirst + static_cast<int>(hash_text(job) % static_cast<uint64_t>(kRange / kPorts)) * kPorts;
}

base::Result<std::unique_ptr<Bootstrap>> tcp_bootstrap(const TcpMeeting& meeting, int rank, int size,
                                                       int64_t timeout_ms) {
  OVERLACE_TRY(check_secret(meeting.secret));
  if (rank == 0) return serve(meeting, size, timeout_ms);
  const int64_t deadline_ns = now_ns() + timeout_ms * 1000000;
  base::Status why;
  do {
    base::Result<std::unique_ptr<Bootstrap>> bootstrap = look_for_rank_0(meeting, rank, size, timeout_ms);
    if (bootstrap.ok()) return bootstrap;
    why = bootstrap.status();
    ::usleep(kRetryUs);
  } while (now_ns() < deadline_ns);
  const int first = first_port(meeting.job);
  return base::error(
      Errc::bootstrap, "bootstrap: rank {} of {} did not find rank 0 on {} (ports {} to {}) within {:.1f} s; {}", rank,
      size, meeting.host, first, first + kPorts - 1, static_cast<double>(timeout_ms) * 1e-3, why.message());
}

}  // namespace overlace::runtime
