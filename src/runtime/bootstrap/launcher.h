// Starts the ranks of one host, relays their all-gathers and watches over them.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace overlace::runtime {

using Variables = std::vector<std::pair<std::string, std::string>>;

/// MASTER_ADDR and MASTER_PORT of the loopback, by which torch's ranks meet; empty where the environment has one of
/// them.
Variables meeting_place();

/// Runs `argv` n times with RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, OVERLACE_LAUNCH_SOCKET and the rank's
/// `additions` in the environment, and meeting_place(); and returns when all have ended: 0, the status of the first
/// that failed (128 + signal if killed), or 130 after SIGINT or SIGTERM, which are passed on. After the first failure
/// the others have 5 seconds. Nothing that was started survives, not even if the launcher is killed. Call it from the
/// only thread of the process. Throws IoError if the program cannot be started. `first_failed`: the rank whose status
/// it is; -1 if there is none.
int launch(int n, const std::vector<std::string>& argv, const std::function<Variables(int rank)>& additions = {},
           int* first_failed = nullptr);

/// What launch() does, with forked copies of this process: each runs `child` and ends with the status that it returns.
/// `launch_socket`: for launcher_bootstrap. `tick` runs in the parent about every 50 ms and at the end.
int launch_forked(int n, const std::function<int(int rank, const std::string& launch_socket)>& child,
                  const std::function<void()>& tick = {}, int* first_failed = nullptr);

}  // namespace overlace::runtime
