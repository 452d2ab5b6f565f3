// What a process that found the launcher's socket may send it: two clients, the second gets what follows the first '|'.
// Sources: src/runtime/bootstrap/relay src/runtime/bootstrap/secret src/runtime/bootstrap/socket
#include <sys/socket.h>
#include <unistd.h>

#include <array>

#include "src/runtime/bootstrap/relay.h"
#include "src/runtime/clock.h"
#include "tests/fuzz/fuzz.h"

namespace overlace::fuzz {

void run(std::string_view input) {
  constexpr int64_t kSecondNs = 1'000'000'000;
  static const std::string name = "overlace-fuzz-" + std::to_string(::getpid());
  const std::unique_ptr<runtime::RelayServer> server = runtime::RelayServer::open(name, "token", 2).value();
  std::array<runtime::UniqueFd, 2> clients;
  for (runtime::UniqueFd& client : clients)
    client = runtime::connect_to(name, SOCK_STREAM, runtime::now_ns() + kSecondNs).value();
  const size_t bar = input.find('|');
  const std::string_view parts[] = {input.substr(0, bar),
                                    bar == std::string_view::npos ? std::string_view() : input.substr(bar + 1)};
  for (size_t i = 0; i < clients.size(); ++i)
    (void)::send(clients[i].get(), parts[i].data(), parts[i].size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  for (int i = 0; i < 3; ++i) server->serve();
  for (runtime::UniqueFd& client : clients) client.reset();
  for (int i = 0; i < 2; ++i) server->serve();
}

}  // namespace overlace::fuzz
