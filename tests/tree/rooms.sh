# The rooms of the tree and which of them a room may use, for includes.sh and
# links_rooms.sh (docs/architecture.md):
#     base <- kernels <- cluster <- attention
#     kernels <- models/kernels; attention, models/kernels <- models/nn
#     models/nn <- models/files <- models/text
#     models <- speech/audio <- speech/whisper
#     models <- speech/audio, speech/words <- speech/recogniser
#     speech <- train/tasks <- train
#     attention <- mpi
# A room's name is its folder, without src/. A new room is a word in a list of rooms and a
# line of may_use.
tops="src models speech train mpi exact cli lab" # the folders that consist of rooms
core="base kernels cluster attention"
models="models/kernels models/nn models/files models/text"
speech="speech/audio speech/whisper speech/words speech/recogniser"
rooms="$core $models $speech train/tasks train mpi exact cli lab"

may_use() { # the rooms that a file of room $1 may use
    case $1 in
    base) echo base ;;
    kernels) echo base kernels ;;
    cluster) echo base kernels cluster ;;
    attention) echo "$core" ;;
    models/kernels) echo base kernels models/kernels ;;
    models/nn) echo "$core models/kernels models/nn" ;;
    models/files) echo "$core models/kernels models/nn models/files" ;;
    models/text) echo "$core $models" ;;
    speech/audio) echo "$core $models speech/audio" ;;
    speech/whisper) echo "$core $models speech/audio speech/whisper" ;;
    speech/words) echo "$core $models speech/words" ;;
    speech/recogniser)
        echo "$core $models speech/audio speech/words speech/recogniser" ;;
    train/tasks) echo "$core $models $speech train/tasks" ;;
    train) echo "$core $models $speech train/tasks train" ;;
    mpi) echo "$core mpi" ;;
    exact) echo exact ;;
    cli) echo cli ;;
    lab) echo lab exact ;;
    esac
}

room_of_file() { # the room of a file, whose path is relative to the root of the tree
    local room=${1%/*}
    echo "${room#src/}"
}

contains() { [[ " $1 " == *" $2 "* ]]; }
