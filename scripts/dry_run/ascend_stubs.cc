// Bodies of the CANN functions for which "return 0" is not enough. Compiled with every other
// CANN symbol that MindSpore's Ascend back end links to (see stub_libraries.py). No kernel computes.
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <map>
#include <string>

namespace {
const char *soc_name() {
  const char *name = getenv("ZOO_DRY_RUN_SOC");
  return name ? name : "Ascend910B1";
}
}  // namespace

extern "C" {
// ge::StatusFactory::Instance(): a reference to an object that holds a map.
void *_ZN2ge13StatusFactory8InstanceEv() {
  static auto *maps = new std::map<unsigned, std::string>[4];
  return maps;
}
const char *aclrtGetSocName(void) { return soc_name(); }
int rtGetSocVersion(char *buffer, uint32_t size) {
  strncpy(buffer, soc_name(), size);
  return 0;
}
int aclrtGetDeviceCount(uint32_t *count) {
  *count = 8;
  return 0;
}
int aclrtMallocHost(void **pointer, size_t size) {
  *pointer = malloc(size);
  return 0;
}
int aclrtMalloc(void **pointer, size_t, int) {  // device memory is never touched
  *pointer = malloc(64);
  return 0;
}
int aclrtFreeHost(void *pointer) {
  free(pointer);
  return 0;
}
const char *aclGetRecentErrMsg(void) { return ""; }
// Read by the kernel fusion of jit level O1. The result: texts of 128, 64, 64, 64 and 64 bytes,
// which are the whole version, major, minor, release and patch.
int aclsysGetCANNVersion(int, char *result) {
  strcpy(result, "9.1.0");
  strcpy(result + 128, "9");
  strcpy(result + 192, "1");
  strcpy(result + 256, "0");
  strcpy(result + 320, "0");
  return 0;
}
}
