# bash: commands and options of motley, asked of the program itself.
_motley()
{
    local word=${COMP_WORDS[COMP_CWORD]}
    if ((COMP_CWORD == 1)); then
        mapfile -t COMPREPLY < <(compgen -W "help $(motley help 2>/dev/null | awk '/^  [a-z]/ {print $1}')" -- "$word")
    elif [[ ${COMP_WORDS[1]} == help ]]; then
        mapfile -t COMPREPLY < <(compgen -W "$(motley help 2>/dev/null | awk '/^  [a-z]/ {print $1}')" -- "$word")
    elif [[ $word == -* ]]; then
        mapfile -t COMPREPLY < <(compgen -W "$(motley help "${COMP_WORDS[1]}" 2>/dev/null | grep -oE -- '--[a-z-]+' | sort -u)" -- "$word")
    fi
}
complete -o default -F _motley motley
