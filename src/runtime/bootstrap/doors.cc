#include "src/runtime/bootstrap/doors.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>

#include "src/runtime/bootstrap/socket.h"

namespace overlace::runtime {
namespace {

constexpr char kLoopback[] = "127.0.0.1";
constexpr char kElsewhere[] = "192.0.2.1";  // of a range for documents: it only chooses a route, nothing is sent

bool is_number(const std::string& host) {
  in_addr address{};
  return ::inet_pton(AF_INET, host.c_str(), &address) == 1;
}

bool is_loopback(const std::string& address) { return address.starts_with("127."); }

/// The name of a host that is not meant to be loopback, but is.
bool is_hidden(const std::string& host, const std::string& address) {
  return is_loopback(address) && !is_number(host) && !host.starts_with("localhost");
}

/// The own address from which the system would speak to another one; empty where there is no way.
std::string source_towards(const std::string& other) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(9);
  address.sin_addr.s_addr = number_of(other);
  const UniqueFd fd(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!fd || ::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) return "";
  return address_of(fd.get());
}

std::string usual_address() {
  const std::string source = source_towards(kElsewhere);
  const std::vector<std::string> own = own_addresses();
  return !source.empty() ? source : !own.empty() ? own.front() : kLoopback;
}

bool contains(const std::vector<std::string>& list, const std::string& text) {
  return std::find(list.begin(), list.end(), text) != list.end();
}

/// What OVERLACE_LISTEN names.
base::Result<std::vector<std::string>> named(const std::string& listen) {
  if (listen == kAnyAddress) return std::vector<std::string>{"*"};
  if (is_number(listen)) {
    if (listen != "0.0.0.0") return std::vector<std::string>{listen};
  } else if (std::vector<std::string> found = own_addresses(listen); !found.empty()) {
    return found;
  }
  return base::invalid_argument(
      "OVERLACE_LISTEN is \"{}\", wanted an IPv4 address or an interface of this host that is up, or any for all "
      "interfaces",
      listen);
}

}  // namespace

base::Result<std::string> address_to_serve(const std::string& host, const std::string& listen) {
  if (!listen.empty()) {
    const base::Result<std::vector<std::string>> found = named(listen);
    return found.ok() ? base::Result<std::string>(found->front()) : found.status();
  }
  base::Result<std::string> address = resolve_host(host);
  if (address.ok() && *address == "0.0.0.0")
    return base::error(Errc::bootstrap,
                       "bootstrap: rank 0 is said to be on \"{}\", which is no address of one host; {}", host,
                       "to listen on all interfaces set OVERLACE_LISTEN to any");
  if (!address.ok() || !is_hidden(host, *address)) return address;
  return usual_address();
}

std::vector<std::string> addresses_to_try(const std::string& host) {
  const base::Result<std::string> address = resolve_host(host);
  if (!address.ok() || !is_hidden(host, *address)) return {host};
  return own_addresses();
}

base::Result<std::vector<std::string>> addresses_of_doors(const std::string& listen, const std::string& met,
                                                          const std::vector<std::string>& others) {
  if (!listen.empty()) return named(listen);
  if (!met.empty()) return std::vector<std::string>{met};
  const std::vector<std::string> own = own_addresses();
  std::vector<std::string> sources;
  bool are_all_here = true;
  for (const std::string& other : others) {
    if (contains(own, other) || is_loopback(other)) continue;
    are_all_here = false;
    const std::string source = source_towards(other);
    if (!source.empty() && !is_loopback(source) && !contains(sources, source)) sources.push_back(source);
  }
  if (are_all_here) return std::vector<std::string>{kLoopback};
  if (sources.empty()) sources.push_back(usual_address());
  return sources;
}

}  // namespace overlace::runtime
