# Starts several ranks: launch COUNT PROGRAM ARGUMENT... SHOAL_MPIRUN names the launcher
# of another MPI than the default one. Without a launcher the script is skipped.
mpirun=${SHOAL_MPIRUN:-mpirun}
if ! command -v "$mpirun" >/dev/null; then
    echo "ok ranks # SKIP there is no $mpirun here"
    exit 77
fi
# Runs as root and with more ranks than processors, which Open MPI rejects by default;
# MPICH does not. The launcher does not wait for ranks that exit.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_MCA_hwloc_base_binding_policy=none
export OMPI_MCA_btl=self,vader OMPI_MCA_odls_base_sigkill_timeout=0
unset OMPI_COMM_WORLD_SIZE PMI_SIZE PMI_RANK PMIX_RANK
export ASAN_OPTIONS=detect_leaks=0 # MPI frees some of its memory only at exit
launch() { timeout 120 "$mpirun" -n "$@"; }
