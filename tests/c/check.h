// Checks of the C programs: each failure is printed with its place; the program ends with finish().
#pragma once

#include <stdio.h>
#include <string.h>

#include "overlace/capi.h"

static int num_failed = 0, num_checked = 0;

// NOLINTBEGIN(bugprone-macro-parentheses): conditions and calls are printed as they stand
#define CHECK(condition) check((condition) ? 1 : 0, #condition, "", __FILE__, __LINE__)
#define EXPECT_OK(call) expect(OVL_OK, "", (call), #call, __FILE__, __LINE__)
#define EXPECT_ERROR(code, text, call) expect((code), (text), (call), #call, __FILE__, __LINE__)
// NOLINTEND(bugprone-macro-parentheses)

static inline int check(int holds, const char* what, const char* more, const char* file, int line) {
  ++num_checked;
  if (holds) return 1;
  ++num_failed;
  printf("%s:%d: %s%s\n", file, line, what, more);
  return 0;
}

/// The code, and with an error the whole message.
static inline int expect(int code, const char* text, int got, const char* call, const char* file, int line) {
  char more[2048] = "";
  const int right = got == code && (code == OVL_OK || strcmp(ovl_error_text(), text) == 0);
  if (!right)
    snprintf(more, sizeof more, ":\n  got    %s: %s\n  wanted %s: %s", ovl_error_name(got),
             got == OVL_OK ? "" : ovl_error_text(), ovl_error_name(code), text);
  return check(right, call, more, file, line);
}

static inline int finish(const char* name, int wanted) {
  if (num_checked < wanted) {
    printf("%s: %d checks, wanted at least %d\n", name, num_checked, wanted);
    return 1;
  }
  printf("%s: %d checks, %d failed\n", name, num_checked, num_failed);
  return num_failed == 0 ? 0 : 1;
}
