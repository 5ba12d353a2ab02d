// Preloaded before torch's functions of the same names: counts the threads that multiplied with torch's small matrix
// kernels and did not release the registers afterwards. On a CPU with AMX such a thread dies of SIGILL later on.
#include <dlfcn.h>

#include <atomic>
#include <cstdint>

namespace {

std::atomic<int> unreleased{0}, products{0};
thread_local bool in_use = false;

// Torch's own function: Python loads its library late and privately, so that RTLD_NEXT does not find it.
template <typename F>
F original(const char* name) {
  return reinterpret_cast<F>(dlsym(dlopen("libtorch_cpu.so", RTLD_LAZY | RTLD_NOLOAD), name));
}

using Multiply = void (*)(
    int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, bool, const void*, const void*, float*, bool);

void count_product() {
  ++products;
  if (!in_use) ++unreleased;
  in_use = true;
}

}  // namespace

#define FLOAT32 _ZN2at6native7cpublas6brgemmEllllllbPKfS3_Pfb
#define BFLOAT16 _ZN2at6native7cpublas6brgemmEllllllbPKN3c108BFloat16ES5_Pfb
#define RELEASE _ZN2at6native7cpublas14brgemm_releaseEb
#define NAME(symbol) TEXT(symbol)
#define TEXT(symbol) #symbol

extern "C" {

int num_products() { return products; }
int num_unreleased() { return unreleased; }

void FLOAT32(
    int64_t m, int64_t n, int64_t k, int64_t a_stride, int64_t b_stride, int64_t c_stride, bool add, const void* a,
    const void* b, float* c, bool interleaved) {
  static const auto torch_multiply = original<Multiply>(NAME(FLOAT32));
  count_product();
  torch_multiply(m, n, k, a_stride, b_stride, c_stride, add, a, b, c, interleaved);
}

void BFLOAT16(
    int64_t m, int64_t n, int64_t k, int64_t a_stride, int64_t b_stride, int64_t c_stride, bool add, const void* a,
    const void* b, float* c, bool interleaved) {
  static const auto torch_multiply = original<Multiply>(NAME(BFLOAT16));
  count_product();
  torch_multiply(m, n, k, a_stride, b_stride, c_stride, add, a, b, c, interleaved);
}

void RELEASE(bool interleaved) {
  if (in_use) --unreleased;
  in_use = false;
  original<void (*)(bool)>(NAME(RELEASE))(interleaved);
}

}
