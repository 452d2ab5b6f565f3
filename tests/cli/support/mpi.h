// Starts the program as ranks of an MPI launcher.
#pragma once

#include <string>
#include <vector>

#include "tests/cli/support/command.h"

namespace overlace::cli_test {

struct Mpi {
  const char* name;  // of the plug-in
  const char* launcher;
  std::vector<std::string> options;  // so that a small machine takes more ranks than it has cores
};
const Mpi& openmpi();
const Mpi& mpich();

/// Why ranks cannot be started with it; empty if they can.
std::string why_not(const Mpi& mpi);
/// Why this machine cannot be several hosts: network namespaces in which it starts its ranks.
std::string why_no_hosts(const Mpi& mpi);

/// Any program in a plain environment, started by our launcher. Leaks are not looked for: MPI has some of its own.
Command plainly(const std::vector<std::string>& words);

/// The launcher's words and then the program's.
std::vector<std::string> ranks_of(const Mpi& mpi, int ranks, const std::vector<std::string>& words);
/// The launcher's words and the program's, on `hosts` network namespaces.
std::vector<std::string> ranks_on_hosts(const Mpi& mpi, int hosts, int ranks_each,
                                        const std::vector<std::string>& words);

/// `overlace run` of something small, as words.
std::vector<std::string> small_run(const std::vector<std::string>& more = {});
/// Lines in which the program says what went wrong.
std::vector<std::string> errors_of(const Result& result);

}  // namespace overlace::cli_test
