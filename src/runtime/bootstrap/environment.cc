// Ranks that somebody else started: who we are stands in the environment.
#include <unistd.h>

#include "overlace/bootstrap.h"
#include "overlace/error.h"
#include "src/base/env.h"
#include "src/runtime/bootstrap/relay.h"
#include "src/runtime/bootstrap/remote.h"
#include "src/runtime/bootstrap/serving.h"
#include "src/runtime/clock.h"
#include "src/runtime/hash.h"

namespace overlace {
namespace {

constexpr const char* kAcceptedWays =
    "accepted: overlace run -n N, torchrun (RANK, WORLD_SIZE, LOCAL_RANK), mpirun (OMPI_COMM_WORLD_*, PMI_*) or srun "
    "(SLURM_*); on several hosts mpirun or srun with engine mpi, any of them with MASTER_ADDR and OVERLACE_SECRET, or "
    "a "
    "callback (a torch process group)";

/// Equal for the ranks of a job, different for jobs that differ in anything a starter tells them.
std::string job_text(const base::Env& env) {
  return base::format("{} {} {} {} {}", env.rank_source, env.world_size, env.master_addr, env.master_port, env.run_id);
}

std::string job_name(const base::Env& env) {
  std::string job = job_text(env);
  // mpirun and srun are the parents of all their ranks of a host.
  if (env.rank_source != "torchrun" && env.run_id.empty()) job += base::format(" {}", ::getppid());
  return base::format("overlace.{}.{:016x}", ::geteuid(), runtime::hash_text(job));
}

base::Result<std::unique_ptr<Bootstrap>> serve_job(const std::string& name, int size, int64_t timeout_ms) {
  const int64_t deadline_ns = runtime::now_ns() + timeout_ms * 1000000;
  while (true) {
    bool in_use = false;
    base::Result<std::unique_ptr<runtime::RelayServer>> server = runtime::RelayServer::open(name, "", size, &in_use);
    if (server.ok()) {
      auto bootstrap = std::make_unique<runtime::ServingBootstrap>(std::move(*server));
      OVERLACE_TRY(bootstrap->join(name, "", size, timeout_ms));
      return std::unique_ptr<Bootstrap>(std::move(bootstrap));
    }
    // An earlier runtime of the same job may still be leaving.
    if (!in_use || runtime::now_ns() >= deadline_ns) return server.status();
    ::usleep(10000);
  }
}

base::Result<std::unique_ptr<Bootstrap>> from_launcher(const base::Env& env, int64_t timeout_ms) {
  const size_t colon = env.launch_socket.find(':');
  if (colon == std::string::npos)
    return base::error(Errc::bootstrap, "bootstrap: OVERLACE_LAUNCH_SOCKET is \"{}\", wanted what overlace run sets",
                       env.launch_socket);
  return runtime::relay_bootstrap(env.launch_socket.substr(0, colon), env.launch_socket.substr(colon + 1), env.rank,
                                  env.world_size, timeout_ms);
}

/// Over TCP where it is known on which host rank 0 is, and there is a secret to show there; else as the ranks of MPI's
/// launchers always can. What launchers say about a job everybody can know: nobody listens on a network with that
/// alone.
base::Result<std::unique_ptr<Bootstrap>> between_hosts(const base::Env& env, int64_t timeout_ms) {
  if (!env.master_addr.empty() && !env.secret.empty())
    return runtime::tcp_bootstrap({env.master_addr, job_text(env), env.secret, env.listen}, env.rank, env.world_size,
                                  timeout_ms);
  const std::string cure = base::format("to meet over TCP set OVERLACE_SECRET to the same random text on all ranks{}",
                                        env.master_addr.empty() ? ", and MASTER_ADDR to the host of rank 0" : "");
  if (env.mpi_rank == env.rank) {
    base::Result<std::unique_ptr<Bootstrap>> met = runtime::mpi_bootstrap(env.rank, env.world_size, timeout_ms);
    if (met.ok()) return met;
    return base::error(met.status().code(), "{}; {}", met.status().message(), cure);
  }
  if (env.master_addr.empty())
    return base::error(Errc::bootstrap,
                       "bootstrap: rank {} of {} ({}): the ranks are on several hosts, but not even MASTER_ADDR says "
                       "where rank 0 is; {}",
                       env.rank, env.world_size, env.rank_source, kAcceptedWays);
  return base::error(
      Errc::bootstrap,
      "bootstrap: rank {} of {} ({}): the ranks are on several hosts and would meet over TCP on {}, with "
      "nothing that a stranger does not know; {}; {}",
      env.rank, env.world_size, env.rank_source, env.master_addr, cure, kAcceptedWays);
}

}  // namespace

std::unique_ptr<Bootstrap> environment_bootstrap() {
  const base::Env& env = base::env();
  if (env.world_size < 0 && env.rank < 0) return std::move(thread_bootstraps(1)[0]);
  if (env.world_size < 0)
    throw PeerLost(Errc::bootstrap,
                   base::format("bootstrap: rank is {} ({}), but no variable says how many there are; {}", env.rank,
                                env.rank_source, kAcceptedWays));
  if (env.world_size < 1 || env.rank < 0 || env.rank >= env.world_size)
    throw PeerLost(Errc::bootstrap, base::format("bootstrap: rank is {} of {} ({}), wanted 0 <= rank < size; {}",
                                                 env.rank, env.world_size, env.rank_source, kAcceptedWays));
  const int64_t timeout_ms = env.timeout_s * 1000;
  if (!env.launch_socket.empty()) return std::move(from_launcher(env, timeout_ms).value());
  if (env.local_size >= 0 && env.local_size < env.world_size) return std::move(between_hosts(env, timeout_ms).value());
  if (env.local_rank >= 0 && env.local_rank != env.rank)
    throw PeerLost(Errc::bootstrap, base::format("bootstrap: rank {} is rank {} of its host: the {} ranks are on "
                                                 "several hosts, but the launcher does not say how many are on each; "
                                                 "{}",
                                                 env.rank, env.local_rank, env.world_size, kAcceptedWays));
  const std::string name = job_name(env);
  base::Result<std::unique_ptr<Bootstrap>> bootstrap =
      env.rank == 0 ? serve_job(name, env.world_size, timeout_ms)
                    : runtime::relay_bootstrap(name, "", env.rank, env.world_size, timeout_ms, "rank 0");
  return std::move(bootstrap.value());
}

}  // namespace overlace
