// Tasks of a schedule by name, to change them, and what the static checks say of it then.
#pragma once

#include <gtest/gtest.h>

#include <set>
#include <stdexcept>
#include <string>

#include "overlace/schedule.h"
#include "src/spec/check.h"

namespace overlace::test {

/// The task that has this id; std::out_of_range if none has.
inline spec::Task& task(spec::Schedule& schedule, const std::string& id) {
  for (spec::Task& t : schedule.tasks) {
    if (t.id == id) return t;
  }
  throw std::out_of_range(id);
}

using Codes = std::set<std::string>;

/// Codes of the errors among the findings, each once.
inline Codes errors(const spec::Schedule& schedule, const spec::Machine& machine = {}) {
  Codes out;
  const spec::CheckReport report = spec::check(schedule, machine);
  for (const spec::Finding& finding : report.findings) {
    if (finding.is_error) out.insert(finding.code);
  }
  EXPECT_EQ(report.ok(), out.empty());
  return out;
}

}  // namespace overlace::test
