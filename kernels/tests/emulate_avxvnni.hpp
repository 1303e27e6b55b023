// The one instruction that AVX-VNNI adds, made of AVX2: included before everything else to compile and run that path without it.
#pragma once
#define __AVXVNNI__ 1
#include <immintrin.h>

// Four unsigned bytes times four signed ones, added in 32 bits. (In 16 bits vpmaddubsw could saturate, so even and odd bytes go apart.)
inline __m256i emulated_dpbusd(__m256i sums, __m256i unsigned_bytes, __m256i signed_bytes) {
    const __m256i even = _mm256_and_si256(unsigned_bytes, _mm256_set1_epi16(0xFF)), odd = _mm256_srli_epi16(unsigned_bytes, 8);
    const __m256i even_in = _mm256_srai_epi16(_mm256_slli_epi16(signed_bytes, 8), 8), odd_in = _mm256_srai_epi16(signed_bytes, 8);
    return _mm256_add_epi32(sums, _mm256_add_epi32(_mm256_madd_epi16(even, even_in), _mm256_madd_epi16(odd, odd_in)));
}
#define _mm256_dpbusd_avx_epi32 emulated_dpbusd
