// `overlace doctor`: what this machine has, what overlace will use, and whether two ranks can talk.
#pragma once

#include <string>

#include "src/base/json.h"

namespace overlace::cli {

struct DoctorOptions {
  bool link_test = true;
  int64_t timeout_ms = 20000;  // of the link test
  std::string python = {};     // an interpreter to ask; empty: none
  int64_t python_timeout_ms = 60000;
};

/// Schema overlace.doctor/1: {"ok", "version", "commit", "cpu", "memory", "gpu", "libraries", "python", "use",
/// "environment", "unknown", "link_tests", "problems"}. Throws nothing: what fails is a problem, and "ok" is false.
base::Json doctor(const DoctorOptions& options = {});

/// The report for people, ending with a newline.
std::string doctor_text(const base::Json& report);

}  // namespace overlace::cli
