//! Status codes of PMIx, as they are sent to clients. They are frozen by the PMIx standard.

/// Status of a request; zero is success, the others are negative.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Status(pub(super) i32);

impl Status {
    /// `PMIX_SUCCESS`.
    pub(super) const SUCCESS: Status = Status(0);
    /// `PMIX_ERR_PROC_ABORTED`: another rank has ended before it took part.
    pub(super) const PROC_ABORTED: Status = Status(-7);
    /// `PMIX_ERR_UNPACK_FAILURE`: the request is malformed.
    pub(super) const UNPACK_FAILURE: Status = Status(-20);
    /// `PMIX_ERR_TIMEOUT`: the time that the client has set is over.
    pub(super) const TIMEOUT: Status = Status(-24);
    /// `PMIX_ERR_BAD_PARAM`: the request makes no sense.
    pub(super) const BAD_PARAM: Status = Status(-27);
    /// `PMIX_ERR_OUT_OF_RESOURCE`: a limit of this server is reached.
    pub(super) const OUT_OF_RESOURCE: Status = Status(-29);
    /// `PMIX_ERR_NOT_FOUND`.
    pub(super) const NOT_FOUND: Status = Status(-46);
    /// `PMIX_ERR_NOT_SUPPORTED`.
    pub(super) const NOT_SUPPORTED: Status = Status(-47);
}
