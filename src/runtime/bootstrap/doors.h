// On which addresses of this host a rank listens for ranks of other hosts: never on all of them unless that was asked
// for by name.
#pragma once

#include <string>
#include <vector>

#include "src/base/status.h"

namespace overlace::runtime {

/// OVERLACE_LISTEN: listen on every interface.
inline constexpr char kAnyAddress[] = "any";

/// The address of rank 0, which the others look for at `host`: that, or what `listen` (OVERLACE_LISTEN, may be empty)
/// names. Where a host's own name means its loopback interface, as some systems have it, the address by which it
/// reaches others. "*" for kAnyAddress.
base::Result<std::string> address_to_serve(const std::string& host, const std::string& listen);
/// Where to look for that rank, in this order.
std::vector<std::string> addresses_to_try(const std::string& host);

/// Addresses of a rank that others connect to: what `listen` names, else `met`, by which it met them, else its own from
/// which the system would speak to `others`; loopback where all of those are on this machine. {"*"} for kAnyAddress.
base::Result<std::vector<std::string>> addresses_of_doors(const std::string& listen, const std::string& met,
                                                          const std::vector<std::string>& others);

}  // namespace overlace::runtime
