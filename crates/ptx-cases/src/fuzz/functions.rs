//! Functions that kernels call.

/// What kernels call: one with ways of its own through it and an early return, one with parameters
/// in memory, two that call each other and themselves, with memory of their own.
pub(super) const FUNCTIONS: &str = ".func (.reg .b32 y) steps(.reg .b32 x)
{
    .reg .pred p;
    .reg .b32 n;
    and.b32 n, x, 7;
    mov.b32 y, x;
    setp.eq.u32 p, n, 3;
    @p ret;
again:
    setp.eq.u32 p, n, 0;
    @p bra done;
    mad.lo.u32 y, y, 1664525, 1013904223;
    sub.u32 n, n, 1;
    setp.gt.s32 p, y, 0;
    @p bra again;
    xor.b32 y, y, n;
    bra again;
done:
    ret;
}

.func (.param .b64 y) pick(.param .align 8 .b8 pair[16], .param .b32 which)
{
    .reg .pred p;
    .reg .b32 n;
    .reg .b64 a, b;
    ld.param.b64 a, [pair];
    ld.param.b64 b, [pair+8];
    ld.param.b32 n, [which];
    setp.lt.s32 p, n, 0;
    selp.b64 a, a, b, p;
    st.param.b64 [y], a;
    ret;
}

.func (.reg .b32 y) leaf(.reg .b32 x, .reg .b32 depth);

.func (.param .b32 y) tree(.param .b32 x, .param .b32 depth)
{
    .reg .pred p, q;
    .reg .b32 r, s, t, n;
    .local .b32 kept[2];
    ld.param.b32 r, [x];
    ld.param.b32 n, [depth];
    mad.lo.u32 t, r, 3, 1;
    setp.eq.u32 p, n, 0;
    @p bra done;
    sub.u32 n, n, 1;
    setp.lt.s32 q, r, 0;
    st.local.b32 [kept], t;
    mov.u32 s, kept;
    @q add.u32 s, s, 4;
    st.local.b32 [s], n;
    {
    .param .b32 a, b, c;
    xor.b32 t, r, n;
    st.param.b32 [a], t;
    st.param.b32 [b], n;
    call (c), tree, (a, b);
    ld.param.b32 t, [c];
    }
    @q call (r), leaf, (t, n);
    ld.local.b32 s, [kept];
    mad.lo.u32 t, r, s, t;
    @!q add.u32 t, t, n;
done:
    st.param.b32 [y], t;
    ret;
}

.func (.reg .b32 y) leaf(.reg .b32 x, .reg .b32 depth)
{
    .reg .pred p;
    .reg .b32 r, n;
    shr.u32 y, x, 1;
    setp.eq.u32 p, depth, 0;
    @p ret;
    sub.u32 n, depth, 1;
again:
    {
    .param .b32 a, b, c;
    st.param.b32 [a], y;
    st.param.b32 [b], n;
    call (c), tree, (a, b);
    ld.param.b32 r, [c];
    }
    xor.b32 y, y, r;
    setp.eq.u32 p, n, 0;
    @p ret;
    sub.u32 n, n, 1;
    and.b32 r, r, 3;
    setp.ne.u32 p, r, 0;
    @p bra again;
    ret;
}

";
