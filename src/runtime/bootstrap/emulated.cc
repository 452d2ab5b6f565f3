#include "src/runtime/bootstrap/emulated.h"

#include <algorithm>

#include "src/base/env.h"
#include "src/base/format.h"
#include "src/runtime/bootstrap/socket.h"

namespace overlace::runtime {

Variables emulated_host(int host) {
  return {{"OVERLACE_HOST_ID", base::format("{}{}", kEmulatedHost, host)},
          {"NCCL_HOSTID", base::format("overlace-emulated-{}", host)}};
}

void keep_nccl_to_sockets() {
  base::set_environment_default("NCCL_IB_DISABLE", "1");
  base::set_environment_default("NCCL_MNNVL_ENABLE", "0");
  const std::vector<std::string> addresses = own_addresses();
  const auto is_loopback = [](const std::string& address) { return address.starts_with("127."); };
  if (std::all_of(addresses.begin(), addresses.end(), is_loopback))
    base::set_environment_default("NCCL_SOCKET_IFNAME", "lo");
}

}  // namespace overlace::runtime
