// What a run leaves behind: table, JSON, hidden states, timeline, report.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "cli/run/options.h"
#include "cli/run/result.h"
#include "src/base/json.h"
#include "src/base/status.h"
#include "src/base/trace.h"

namespace overlace::cli {

struct RunOutputs {
  const RunResult& result;
  const std::vector<float>& hidden_states;  // tokens x hidden, of the overlapped run
  int64_t hidden = 0;
  base::Trace serial, overlapped;  // of all ranks; empty unless a timeline was asked for
};

/// Every file whole or not at all; the first failure is returned after all were tried. The table goes to stdout unless
/// the JSON does or quiet was asked for.
base::Status write_outputs(const RunOptions& options, const RunOutputs& outputs);

/// A file that will be written: its directory takes new files, or what is there can be written. Empty and - pass.
base::Status check_writable(const char* option, const std::string& path);

/// Writes to stdout and checks that it arrived: a full disk behind a redirection is Errc::io.
base::Status print(std::string_view text);

/// What a command gives to programs: `data` with "schema": "overlace.NAME/1" in front; a list becomes its "rows".
base::Json with_schema(std::string_view name, base::Json data);
/// A command's result: as text on stdout and, where `target` names a file, as data there; "-": as data on stdout only.
base::Status write_result(const base::Json& data, std::string_view text, const std::string& target);

}  // namespace overlace::cli
