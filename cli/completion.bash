_shoal() {
    local current=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD - 1]}
    local kinds commands options='' words=NONE value i seen=0 list=()
    local -A values=()
    _shoal_tables "${COMP_WORDS[1]}"
    COMPREPLY=()
    # --option=value is split into three words.
    if [ "$current" = = ]; then
        current=''
    elif [ "$before" = = ]; then
        before=${COMP_WORDS[COMP_CWORD - 2]}
    fi
    if [ "$COMP_CWORD" = 1 ]; then
        value="$commands help --help --version"
    elif [ "${COMP_WORDS[1]}" = help ]; then
        value=$commands
    elif [ -n "$before" ] && [ -n "${values[$before]-}" ]; then
        value=${values[$before]}
    elif [[ $current == -* ]]; then
        value=$options
    else
        for ((i = 2; i < COMP_CWORD; i++)); do
            case ${COMP_WORDS[i]} in
            =) ((i++)) ;;
            -*) [ -z "${values[${COMP_WORDS[i]}]-}" ] || ((i++)) ;;
            *) ((seen++)) ;;
            esac
        done
        read -r -a list <<<"$words"
        ((seen < ${#list[@]})) || seen=$((${#list[@]} - 1))
        value=${list[seen]}
    fi
    case $value in
    NONE) ;;
    FILE | DIR)
        compopt -o filenames 2>/dev/null
        [ "$value" = DIR ] && i=-d || i=-f
        mapfile -t COMPREPLY < <(compgen "$i" -- "$current") ;;
    KIND) mapfile -t COMPREPLY < <(compgen -W "$kinds" -- "$current") ;;
    KINDS) # separated by commas; the last item is completed
        compopt -o nospace 2>/dev/null
        i=${current%"${current##*,}"}
        mapfile -t COMPREPLY < <(compgen -P "$i" -W "$kinds" -- "${current##*,}") ;;
    *) mapfile -t COMPREPLY < <(compgen -W "${value//|/ }" -- "$current") ;;
    esac
}
complete -F _shoal shoal
